"""The memory of a chip by part, from what the compiler writes."""

from bert_jax.tools.planning.compiler import CompiledProgram
from bert_jax.tools.planning.roofline import memory_of

# As libtpu 0.0.51 writes them, shortened: color 1 is the memory on the chip.
BUFFERS = """BufferAssignment:
allocation 0: size 2097152, page 0, parameter 0, shape |f32[512,1024]| at ShapeIndex {}:
 value: <30 param.1 @0> (size=2097152,offset=0): f32[512,1024]{1,0:T(8,128)}
allocation 487: size 9000000, page 0, preallocated-temp:
 value: <31 saved @0> (size=4000000,offset=0): bf16[8,128,1024]{2,1,0}
 value: <32 recomputed @0> (size=4000000,offset=0): bf16[8,128,1024]{2,1,0}
 value: <33 gradient @0> (size=1048576,offset=4000000): bf16[512,1024]{1,0:T(8,128)(2,1)}
 value: <34 of_a_layer @0> (size=2000000,offset=6000000): f32[1024,16,64]{2,1,0}
 value: <35 early @0> (size=3000000,offset=5050000): f32[8,128]{1,0}
allocation 488: size 96231936, color 1, page 0, preallocated-temp:
 value: <54 on_the_chip @1> (size=90000000,offset=0): bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}
"""
RANGES = """HloLiveRange (max 33):
  BufferLiveRange:
    param.1{}:0-33
    saved{}:2-9
    recomputed{}:9-12
    gradient{}:10-20
    of_a_layer{}:11-20
    early{}:1-5
    on_the_chip{}:0-33
"""
FACTS = {
    "parameters": 10_000_000,
    "moments": 20_000_000,
    "teacher": 0,
    "batch": 1_000,
    "parameter_shapes": [[512, 1024], [24, 16, 64, 1024]],
}


def program(**changes) -> CompiledProgram:
    sizes = {
        "argument": 30_005_000,
        "output": 30_000_100,
        "alias": 30_000_000,
        "temp": 9_000_000,
        "generated_code": 500,
    }
    values = dict(text="", buffers=BUFFERS, live_ranges=RANGES, memory=sizes, failure="", resharding_warnings=0)
    return CompiledProgram(**(values | changes), seconds=1.0, cpu_seconds=1.0)


def test_the_parts_at_the_moment_when_most_is_kept():
    """At 11 there are the recomputed activations and both gradients; at 4 it is less, and VMEM does not count."""
    memory = memory_of(program(), FACTS)
    assert memory.gradients == 1_048_576 + 2_000_000  # a table, and one layer of a stacked kernel in another order
    assert memory.activations == 4_000_000  # two values in one place are there once
    assert memory.unattributed == 9_000_000 - memory.gradients - memory.activations
    assert (memory.parameters, memory.moments, memory.batch, memory.padding) == (10_000_000, 20_000_000, 1_000, 4_000)
    assert memory.total == 30_005_000 + 100 + 9_000_000 + 500


def test_the_parts_without_what_the_compiler_says_of_buffers():
    memory = memory_of(program(buffers="", live_ranges=""), FACTS)
    assert (memory.gradients, memory.activations, memory.unattributed) == (0, 0, 9_000_000)
    assert memory.total == 30_005_000 + 100 + 9_000_000 + 500
