"""Programs are compiled once per shape, ahead of the call, and no rate counts that."""

import threading
import types

import jax
import numpy as np
import pytest

from bert_jax.devices.signals import StopSignals
from bert_jax.training.metrics import Rates
from bert_jax.training.step import Program


def batch(length: int) -> dict:
    return {"x": np.ones((2, length), np.float32), "y": np.zeros(2, np.int32)}


def test_one_compilation_per_shape():
    program = Program(jax.jit(lambda scale, batch: scale * batch["x"].sum()))
    arrays = [jax.device_put((np.float32(2), batch(length))) for length in (3, 5, 3, 5)]
    assert [float(program(*given)) for given in arrays] == [12, 20, 12, 20]
    assert len(program.compiled) == 2


@pytest.mark.parametrize("signals", [None, StopSignals()])
def test_rates_count_the_steps_under_way_but_not_the_compilation(signals, monkeypatch):
    now = [0.0]
    rates = Rates(clock=lambda: now[0])

    def compile_():
        now[0] += 100
        return lambda scale, batch: "ran"

    def finish(arguments):  # the step before this one, which the device is still busy with
        now[0] += 1

    monkeypatch.setattr(jax, "block_until_ready", finish)
    program = Program(types.SimpleNamespace(lower=lambda *_: types.SimpleNamespace(compile=compile_)))
    rates.count(sequences=8, tokens=64)
    for _ in range(2):
        program.prepare(2, batch(3), signals=signals, rates=rates)
        assert program(2, batch(3)) == "ran"
    assert rates.report()["tokens_per_second"] == 64


def test_what_was_begun_is_not_compiled_again():
    compiled = []

    def compile_(*arguments):
        compiled.append(threading.current_thread())
        return types.SimpleNamespace(compile=lambda: lambda scale, batch: "ran")

    program = Program(types.SimpleNamespace(lower=compile_))
    described = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch(3).items()}
    for _ in range(2):
        program.begin(2, described)
    program.prepare(2, batch(3), signals=StopSignals())
    assert program(2, batch(3)) == "ran" and len(compiled) == 1 and compiled[0] is not threading.main_thread()
    program.begin(2, described)
    narrow = batch(3) | {"y": np.zeros(2, np.int16)}
    assert program(2, narrow) == "ran" and compiled[1:] == [threading.main_thread()], "another type, another program"


@pytest.mark.parametrize("begun", [False, True])
def test_an_error_in_compiling_is_raised_where_it_is_waited_for(begun):
    def compile_():
        raise ValueError("too large for the device")

    program = Program(types.SimpleNamespace(lower=lambda *_: types.SimpleNamespace(compile=compile_)))
    if begun:
        program.begin(2, batch(3))
    with pytest.raises(ValueError, match="too large"):
        program.prepare(2, batch(3), signals=StopSignals())
