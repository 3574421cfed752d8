"""The engine: what it says is what the library says, and who waits for whom."""

import asyncio
import collections
import concurrent.futures
import dataclasses
import gc
import logging
import threading
import time

import numpy as np
import pytest
from pretrained_model import CONFIG, loaded, random_texts, stored_model

from bert_jax.config import HeadConfig
from bert_jax.config.heads import EmbeddingConfig, TokenVectors, WordVector
from bert_jax.config.serving import EngineOptions
from bert_jax.data.sequences import as_features
from bert_jax.devices.placement import StoredArray
from bert_jax.errors import UserError
from bert_jax.tools.serving.engine import Draining, Engine, Failed, Late, Overloaded, TooLarge
from bert_jax.tools.serving.questions import Embed, FillMask, NextSentence, Predict, Rank, Similarity
from bert_jax.tools.serving.turns import Turn, Work

# A norm's sums are those of a large batch from 4,096 numbers on, which 64 positions of this width have.
SIZES = dataclasses.replace(CONFIG, hidden_size=64, num_layers=2, intermediate_size=128, max_position_embeddings=100)
LABELS = HeadConfig(labels=("a", "b", "c"))
OPTIONS = EngineOptions(positions=128, deadline=60)  # few shapes to compile


@pytest.fixture(scope="module")
def models():
    return {"words": loaded(stored_model(SIZES)), "labels": loaded(stored_model(SIZES, head=LABELS))}


@pytest.fixture(scope="module")
def started(models):
    engine = Engine(models, OPTIONS)
    engine.start()
    assert engine.warmed[0] == engine.warmed[1] > 0
    yield engine
    engine.close()


@pytest.fixture
def engine(models, started):
    """An engine of its own, whose programs are compiled."""
    made = []

    def make(**options):
        one = Engine(models, dataclasses.replace(OPTIONS, **options))
        one._warm = lambda *_: None
        one.start()
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


# What the heads of `forms` are asked; the words are those of the small vocabulary.
INPUTS = {
    "regression": ["the cat sat", ("a dog", "ran in the house")],
    "multilabel": ["the cat sat", "a big dog ran in the house on the mat ."],
    "tagging": ["the cat sat on the mat .", "a big dog"],
    "span": [("the cat", "a cat sat on the mat . " * 4), ("a dog", "a big dog ran")],
    "choice": [("the cat", ["sat on the mat", "flew"]), ("a dog", ["ran", "sat in the house"])],
}


class Held:
    """A question whose output keeps the compute thread busy until it is let go."""

    def __init__(self):
        self.began, self.go = threading.Event(), threading.Event()

    def texts(self):
        return ()

    def answer(self, model):
        ids = np.full(4, model.need_tokenizer().cls_id, np.int32)
        return [rows for _, rows in model.compute(self, as_features([(ids, np.zeros_like(ids))], 100), 1, None)]

    def packed(self, _runner):
        return False

    def rows(self, _runner, batch):
        self.began.set()
        assert self.go.wait(60)
        return [None] * len(batch["input_ids"])

    async def hold(self, engine):
        task = asyncio.create_task(engine.ask("words", self))
        await asyncio.to_thread(self.began.wait, 60)
        return task


async def waits(engine, requests: int, texts: int = 0):
    """Wait until so many requests are accepted, and so many texts of them are in the queue."""
    for _ in range(30_000):
        with engine._changed:
            untaken = sum(work.untaken for each in engine._requests for work in each.works)
        if engine.waiting == requests and untaken >= texts:
            return
        await asyncio.sleep(0.002)
    raise AssertionError((engine.waiting, untaken))


def same(found, expected) -> bool:
    if isinstance(expected, np.ndarray):
        return np.array_equal(found, expected)
    return found == expected


def questions(count: int):
    """Requests of every kind with texts of 3 to 80 tokens."""
    texts = [" ".join(random_texts(1 + number % 7, seed=number)) for number in range(count)]
    for number, text in enumerate(texts):
        others = texts[number : number + 3]
        yield from (
            ("words", Embed([text])),
            ("words", Embed(others, normalize=True)),
            ("words", FillMask([f"the [MASK] {text[:200]}", "[MASK] sat"])),
            ("words", NextSentence([("the cat sat", text[:150])])),
            ("labels", Predict([text])),
        )


def said(model, question):
    match question:
        case Embed(asked=texts, normalize=normalize):
            return model.embed(texts, normalize=normalize)
        case FillMask(asked=texts, top_k=most):
            return model.fill_mask(texts, most)
        case NextSentence(pairs=pairs):
            return [model.next_sentence(*pair) for pair in pairs]
        case Predict(inputs=inputs):
            return model.predict(inputs)


def test_answers_under_load_are_those_of_the_library_to_the_bit(models, started):
    asked = list(questions(10))
    before = started.observed()

    async def together():
        return await asyncio.gather(*(started.ask(*each) for each in asked))

    answers = asyncio.run(together())
    after = started.observed()
    assert after.compiled == before.compiled, "every program was compiled before the first request"
    assert after.batches - before.batches < len(asked), "requests share batches"
    assert after.answered - before.answered == len(asked) and started.waiting == 0
    for (name, question), answer in zip(asked, answers, strict=True):
        assert same(answer, said(models[name], question)), question
        if isinstance(question, Embed):
            alone = [models[name].embed([text], normalize=question.normalize)[0] for text in question.asked]
            assert np.array_equal(answer, alone), "and whoever else is asked about"


def test_other_questions_are_answered_by_the_same_calls(models, started):
    words, texts = models["words"], random_texts(4, seed=5)

    async def ask(question, name="words"):
        return await started.ask(name, question)

    short = asyncio.run(ask(Embed(texts, normalize=True, dimensions=8)))
    whole = words.embed(texts, normalize=True)[:, :8]
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole, axis=1, keepdims=True), rtol=1e-6)
    query, documents = words.embed(texts[:1], prompt="query"), words.embed(texts[1:], prompt="document")
    assert asyncio.run(ask(Rank(texts[0], texts[1:]))) == (documents @ query[0]).tolist()
    cosines = asyncio.run(ask(Similarity([(texts[0], texts[1]), (texts[2], texts[2])])))
    unit = words.embed(texts[:2], normalize=True).astype(float)
    np.testing.assert_allclose(cosines, [unit[0] @ unit[1], 1], atol=1e-6)
    assert asyncio.run(started.run("words", lambda model: model.path)) == "somewhere"
    for question, name, message in (
        (Embed(texts, dimensions=65), "words", "between 1 and 64"),
        (FillMask(["no mask"]), "words", "there is no"),
        (Predict(texts), "words", "no task head"),
        (Rank("the cat", texts), "labels", "cannot rank"),
        (NextSentence([("a",)]), "words", "pair of texts"),
        (Embed(texts), "nobody", "no model is called 'nobody'; there are words, labels"),
    ):
        with pytest.raises(UserError, match=message):
            asyncio.run(ask(question, name))
    assert started.waiting == 0 and not started._turns and not started._tokens


def test_questions_are_answered_as_soon_as_single_texts_have_their_programs(models, started):
    """And the same to the bit, in batches of what is there; the others are compiled meanwhile, and then used."""
    engine, texts, held = Engine(models, OPTIONS), random_texts(40, seed=2), threading.Event()
    engine._warm = lambda _, output, features: len(features) == 1 or held.wait(60)
    batches, computed = [], engine._computed
    engine._computed = lambda turn: (batches.append(turn.rows), computed(turn))
    warms, expected = threading.Thread(target=engine.start), models["words"].embed(texts)
    compiled = started.observed().compiled

    async def ask():
        return await engine.ask("words", Embed(texts))

    warms.start()
    while not engine.ready:
        time.sleep(0.002)
    assert engine.warmed[0] < engine.warmed[1]
    assert np.array_equal(asyncio.run(ask()), expected) and set(batches) == {1}
    held.set()
    warms.join()
    assert engine.warmed[0] == engine.warmed[1]
    batches.clear()
    assert np.array_equal(asyncio.run(ask()), expected) and max(batches) > 1
    assert engine.observed().compiled == compiled, "all programs were there"
    engine.close()
    cold = Engine(models, dataclasses.replace(OPTIONS, compile_first="all"))
    cold._warm = lambda *_: seen.append(cold.ready)
    seen = []
    cold.start()
    assert cold.ready and not any(seen)
    cold.close()


def test_hundreds_that_are_late_are_dropped_together_and_others_answered(engine):
    asked = engine(max_requests=400)

    async def meet():
        held = Held()
        first = await held.hold(asked)
        late = [asyncio.create_task(asked.ask("words", Embed(["a dog"]), deadline=0.05)) for _ in range(300)]
        stays = [asyncio.create_task(asked.ask("words", Embed([text]))) for text in random_texts(20)]
        while asked.waiting + sum(each.done() for each in late) < 1 + 300 + 20:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # twice the deadline of the last
        held.go.set()
        return await asyncio.gather(*late, return_exceptions=True), await asyncio.gather(*stays), await first

    late, stays, _ = asyncio.run(meet())
    assert {type(each) for each in late} == {Late}
    assert np.array_equal(np.concatenate(stays), asked.models["words"].embed(random_texts(20)))
    assert asked.observed().late == 300 and asked.observed().texts == 21
    assert not asked._requests and not asked._turns and not asked._tokens


def test_a_deadline_ends_the_reading_of_texts(engine, monkeypatch):
    asked, read = engine(), []
    vocabulary = asked.models["words"].need_tokenizer().vocabulary
    encode = type(vocabulary).encode

    def slowly(self, texts):
        read.append(sum(map(len, texts)))
        next(iter(asked._requests)).deadline = 0
        return encode(self, texts)

    monkeypatch.setattr(type(vocabulary), "encode", slowly)
    with pytest.raises(Late):
        asyncio.run(asked.ask("words", Embed(["the cat " * 1000] * 100)))
    assert len(read) == 1 and read[0] < 30_000, "of 800,000 characters"


def test_texts_that_are_cut_are_counted_and_told_of_once(engine, caplog):
    asked, text = engine(), "the cat sat " * 100
    for _ in range(3):
        asyncio.run(asked.ask("words", Embed([text, "a cat", text])))
    assert asked.observed().cut == 6
    assert [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING] == [
        "2 texts were longer than a model reads and were cut, since the start"
    ]


def test_a_call_that_takes_long_does_not_keep_questions_waiting(engine):
    asked, held = engine(), Held()

    async def meet():
        call = asyncio.create_task(asked.run("words", lambda _: held.rows(None, {"input_ids": [0]})))
        await asyncio.to_thread(held.began.wait, 60)
        found = await asked.ask("words", Embed(["the cat"]))
        held.go.set()
        assert await call == [None]
        return found

    assert asyncio.run(meet()).shape == (1, 64)


def test_a_request_of_many_texts_delays_another_by_a_batch(engine):
    asked, order = engine(), []
    computed = asked._computed
    asked._computed = lambda turn: (order.append({id(place.work) for place in turn.places}), computed(turn))

    async def meet():
        held = Held()
        first = await held.hold(asked)
        many = asyncio.create_task(asked.ask("words", Embed(random_texts(1000))))
        await waits(asked, 2, 1000)
        one = asyncio.create_task(asked.ask("words", Embed(["the cat"])))
        other = asyncio.create_task(asked.ask("labels", Predict(["the dog"])))
        await waits(asked, 4, 1002)
        held.go.set()
        await asyncio.gather(first, many, one, other)

    asyncio.run(meet())
    _, *order = order  # what was held
    assert len(order) > 20
    assert len(order[0]) == 2, "the first batch has texts of both"
    assert order[0].isdisjoint(order[1]), "then it is the other model's turn"


def test_what_is_too_much_is_refused_at_once(engine):
    asked = engine(max_requests=3, max_texts=20, max_bytes=500, max_tokens=100)

    async def meet():
        for question, message in (
            (Embed(["a"] * 21), "21 texts, and at most 20"),
            (Embed(["a" * 501]), "501 bytes of text"),
            (Embed(["the cat sat on"] * 20), "120 tokens, and at most 100"),
        ):
            with pytest.raises(TooLarge, match=message):
                await asked.ask("words", question)
        held = Held()
        first = await held.hold(asked)
        many = asyncio.create_task(asked.ask("words", Embed(["the cat"] * 18)))
        await waits(asked, 2, 18)
        with pytest.raises(Overloaded) as full:
            await asked.ask("words", Embed(["the cat"] * 2))
        assert 1 <= full.value.retry_after <= 60
        with pytest.raises(Overloaded):  # by its tokens
            await asked.ask("words", Embed(["the cat sat on the mat . " * 4]))
        one = asyncio.create_task(asked.ask("words", Embed(["the cat"])))
        await waits(asked, 3, 19)
        with pytest.raises(Overloaded):
            await asked.ask("words", Embed([]))
        held.go.set()
        await asyncio.gather(first, many, one)
        await asked.ask("words", Embed(["the cat"]))

    asyncio.run(meet())
    assert asked.observed().overloaded == 3 and asked.waiting == 0 and not asked._tokens


def test_who_is_gone_or_late_leaves_the_queue(engine):
    asked, called = engine(), []

    async def meet():
        held = Held()
        first = await held.hold(asked)
        gone = asyncio.create_task(asked.ask("words", Embed(["a dog"] * 5)))
        calls = Held()
        before = asyncio.create_task(asked.run("words", lambda _: calls.rows(None, {"input_ids": [0]})))
        await asyncio.to_thread(calls.began.wait, 60)
        also = asyncio.create_task(asked.run("words", called.append))
        late = asyncio.create_task(asked.ask("words", Embed(["a bird"]), deadline=50))
        stays = asyncio.create_task(asked.ask("words", Embed(["the cat"])))
        await waits(asked, 6, 7)
        gone.cancel()
        also.cancel()
        await waits(asked, 4, 2)
        calls.go.set()
        await before
        min(asked._requests, key=lambda each: each.deadline).deadline = 0  # its deadline has passed meanwhile
        held.go.set()
        with pytest.raises(Late):
            await late
        found = await stays
        await asyncio.gather(first)
        assert gone.cancelled() and also.cancelled()
        return found

    found, seen = asyncio.run(meet()), asked.observed()
    assert found.shape == (1, 64)
    assert (seen.texts, seen.late, seen.cancelled) == (2, 1, 2), "theirs were never computed"
    assert not called
    assert not asked._requests and not asked._turns and not asked._tokens


def test_a_failure_is_that_of_its_batch_and_shows_no_text(engine, caplog, monkeypatch):
    asked = engine()
    runner = asked.models["words"].runner
    embed, text = runner.embed, "".join(("sec", "ret"))

    def fails(batch, *arguments):
        if batch["weights"].sum() > 1:
            raise RuntimeError(text)
        return embed(batch, *arguments)

    monkeypatch.setattr(runner, "embed", fails)

    async def meet():
        held = Held()
        first = await held.hold(asked)
        several = [asyncio.create_task(asked.ask("words", Embed([text]))) for text in ("a cat", "a dog")]
        other = asyncio.create_task(asked.ask("labels", Predict(["a cat"])))
        await waits(asked, 4, 3)
        held.go.set()
        found = await asyncio.gather(*several, other, first, return_exceptions=True)
        with pytest.raises(Failed):
            await asked.run("words", lambda model: 1 / 0)
        return found, await asked.ask("words", Embed(["a bird"]))

    caplog.set_level(logging.ERROR)
    found, after = asyncio.run(meet())
    assert [type(each) for each in found[:2]] == [Failed, Failed]
    assert found[2][0].name in LABELS.labels and after.shape == (1, 64)
    assert "RuntimeError" in caplog.text and "in fails" in caplog.text and "secret" not in caplog.text
    assert asked.observed().failed == 3


def test_an_engine_that_ends_answers_what_it_has_accepted(models, engine):
    asked = engine()

    async def meet():
        held = Held()
        first = await held.hold(asked)
        tasks = [asyncio.create_task(asked.ask("words", Embed([text]))) for text in random_texts(30)]
        await waits(asked, 31, 30)
        ends = asyncio.create_task(asked.drain(30))
        await asyncio.sleep(0.01)
        with pytest.raises(Draining):
            await asked.ask("words", Embed(["too late"]))
        assert not asked.ready
        held.go.set()
        found = await asyncio.gather(*tasks)
        await ends
        await first
        return found

    found = asyncio.run(meet())
    assert np.array_equal(np.concatenate(found), models["words"].embed(random_texts(30)))
    assert not asked._thread.is_alive()
    with pytest.raises(Draining):
        asyncio.run(Engine(models).ask("words", Embed(["too early"])))
    ended = Engine(models)
    ended._warm = lambda *_: ended.close()  # a signal during the warm-up
    ended.start()
    assert not ended.ready and not ended._thread.is_alive()


def test_an_engine_that_must_end_drops_what_waits(engine):
    asked = engine()

    async def meet():
        held = Held()
        first = await held.hold(asked)
        waiting = asyncio.create_task(asked.ask("words", Embed(["a cat"])))
        await waits(asked, 2, 1)
        asyncio.get_running_loop().call_later(0.2, held.go.set)
        await asked.drain(0.05)
        return await asyncio.gather(first, waiting, return_exceptions=True)

    assert [type(each) for each in asyncio.run(meet())] == [Draining, Draining]


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUTS)
def test_every_head_says_what_it_says_alone(kind):
    labels = {"regression": (), "span": (), "choice": ()}.get(kind, ("O", "B-X", "I-X"))
    model = loaded(stored_model(SIZES, head=HeadConfig(kind=kind, labels=labels)))
    asked = Engine({"model": model}, OPTIONS)
    asked.start()
    before = asked.observed().compiled

    async def together():
        questions = [Predict([each]) for each in INPUTS[kind] * 20] + [Predict(INPUTS[kind])]
        return await asyncio.gather(*(asked.ask("model", question) for question in questions))

    *found, both = asyncio.run(together())
    assert asked.observed().compiled == before
    asked.close()
    alone = [model.predict([each])[0] for each in INPUTS[kind]]
    assert [each for (each,) in found] == alone * 20 and both == alone == model.predict(INPUTS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("form", [TokenVectors(size=8), WordVector()], ids=["tokens", "words"])
def test_other_forms_of_vectors_are_those_of_the_text_alone(form):
    stored = stored_model(SIZES, ("mlm",), embedding=EmbeddingConfig(form=form))
    if isinstance(form, TokenVectors):
        kernel = np.random.default_rng(0).normal(size=(64, form.size)).astype(np.float32)
        stored.arrays["token_vectors/kernel"] = StoredArray(kernel.shape, kernel.dtype, kernel.__getitem__)
    model = loaded(stored)
    asked, texts = Engine({"model": model}, OPTIONS), random_texts(40)
    asked.start()
    before = asked.observed().compiled

    async def together():
        return await asyncio.gather(*(asked.ask("model", Embed([text])) for text in texts))

    for text, found in zip(texts, asyncio.run(together()), strict=True):
        (expected,) = model.embed([text])
        (answer,) = found
        dense = lambda values: values.toarray() if hasattr(values, "toarray") else np.asarray(values)
        assert np.array_equal(dense(answer), dense(expected))
    assert asked.observed().compiled == before
    asked.close()


@pytest.mark.slow
def test_nothing_is_kept_of_ten_thousand_requests_from_many_threads(models, engine):
    """A quarter are cancelled at some moment, some are late, some cannot be read; all others get their own answer."""
    asked, texts = engine(max_requests=64, threads=16), random_texts(200, seed=1)
    expected = models["words"].embed(texts)

    async def client(seed: int, count: int) -> collections.Counter:
        random, seen = np.random.default_rng(seed), collections.Counter()
        for _ in range(count):
            number, fate = int(random.integers(len(texts))), random.random()
            task = asyncio.create_task(
                asked.ask(
                    "words",
                    FillMask(["no mask"]) if fate < 0.05 else Embed([texts[number]]),
                    deadline=0.002 if fate > 0.95 else None,
                )
            )
            if fate > 0.75 and fate < 0.95:
                await asyncio.sleep(random.random() * 0.01)
                task.cancel()
            try:
                found = await task
                assert fate >= 0.05 and np.array_equal(found[0], expected[number])
                seen["answered"] += 1
            except (UserError, Late, Overloaded, asyncio.CancelledError) as error:
                seen[type(error).__name__] += 1
        return seen

    async def clients(seed: int):
        return sum(await asyncio.gather(*(client(seed + k, 250) for k in range(10))), collections.Counter())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        seen = sum(pool.map(lambda seed: asyncio.run(clients(seed)), (0, 100, 200, 300)), collections.Counter())
    assert seen.total() == 10_000 and seen["answered"] > 3000 and seen["UserError"] > 100, seen
    deadline = time.monotonic() + 30
    while (asked.waiting or asked._turns) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not asked._requests and not asked._turns and not asked._tokens
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, (Work, Turn))]
