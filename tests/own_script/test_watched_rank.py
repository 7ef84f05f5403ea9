"""What a rank notes of a script, in this process: it must neither end a sound script nor change it."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from collectives.own_script import run, watch


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A rank's watch, in its folder."""
    (tmp_path / "many" / "notes").mkdir(parents=True)
    (tmp_path / "many" / "rank-0").mkdir()
    monkeypatch.chdir(tmp_path / "many" / "rank-0")
    with open(tmp_path / "many" / "notes" / "0.jsonl", "x") as file:
        yield watch.RankWatch(tmp_path / "many" / "notes", file)


def notes(watched, kind):
    lines = (watched.notes / "0.jsonl").read_text().splitlines()
    return [note for note in map(json.loads, lines) if note["kind"] == kind]


def test_links_to_files_of_the_reader_become_copies_before_they_are_written(watched, tmp_path):
    here = tmp_path / "many" / "rank-0"
    (tmp_path / "log").write_text("mine")
    (here / "scratch").symlink_to(tmp_path / "log")
    watched.opened("open", ("scratch", "r", 0))
    assert (here / "scratch").is_symlink()
    watched.opened("open", ("scratch", "a", 1))
    assert not (here / "scratch").is_symlink()
    assert (here / "scratch").read_text() == (tmp_path / "log").read_text() == "mine"


def test_other_links_stay_as_they_are(watched, tmp_path):
    here = tmp_path / "many" / "rank-0"
    (here / "3.pt").write_text("the script's own")
    (here / "latest.pt").symlink_to("3.pt")
    (tmp_path / "log").write_text("mine")
    (tmp_path / "elsewhere").symlink_to("log")  # as /dev/stdout
    (here / "folder").symlink_to(tmp_path)
    (here / "loop").symlink_to("loop")
    for path in "latest.pt", str(tmp_path / "elsewhere"), "folder/elsewhere", "loop", 1, b"log":
        watched.opened("open", (path, "w", 1))
    links = here / "latest.pt", tmp_path / "elsewhere", here / "loop"
    assert all(link.is_symlink() for link in links)


def test_of_what_is_lazy_sparse_or_complex_nothing_is_noted():
    plain = torch.arange(3.0)
    assert watch._some([plain]) == [0, 1, 2]
    lazy = torch.nn.LazyLinear(1).weight
    for other in lazy, plain.to_sparse(), plain.to(torch.complex64), plain.to("meta"):
        assert watch._some([plain, other]) == []


def test_a_gradient_may_be_sparse():
    model = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    assert not watch._has_gradient(optimizer)
    model(torch.tensor([1])).sum().backward()
    assert watch._has_gradient(optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert not watch._has_gradient(optimizer)


def test_what_cannot_be_noted_does_not_end_the_script():
    def failing(*_, **__):
        raise KeyError
        yield

    def failing_after(*_, **__):
        yield
        raise KeyError

    for watching in failing, failing_after, lambda: None:
        assert watch._wrapped(divmod, watching)(7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            watch._wrapped(divmod, watching)(7, 0)
        with pytest.raises(StopIteration):
            watch._wrapped(next, watching)(iter([]))


def test_only_a_gpu_that_is_in_use_is_asked_whether_it_records(monkeypatch):
    def no_driver():
        raise RuntimeError

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", no_driver)
    assert watch._can_note()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not watch._can_note()


def test_an_iterator_that_begins_by_itself_goes_to_its_end(watched):
    iterator = iter(DataLoader(TensorDataset(torch.arange(2.0))))
    loaded = watch._wrapped(type(iterator).__next__, watched.loaded)
    watched.latest = 1
    loaded(iterator), loaded(iterator)
    with pytest.raises(StopIteration):
        loaded(iterator)
    assert [note["number"] for note in notes(watched, "batch")] == [0, 0]
    assert watched.latest == 0


def test_spawn_without_join_returns_what_can_be_joined(watched, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    ran = []
    for join in True, False:
        context = watched.spawn(lambda *args: ran.append(args), args=("a",), nprocs=2, join=join)
        assert context is None if join else context.join() is True
    assert ran == [(1, "a")] * 2


def test_parts_of_a_weight_are_noted_when_they_are_looked_at(watched):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])
    watched.optimizers.append(optimizer)
    assert (watched.weights(), notes(watched, "sharded")) == ([1, 1], [])
    weight._fsdp_flattened = True  # FSDP may divide them after the optimizer was made
    assert watched.weights() == []
    assert len(notes(watched, "sharded")) == 1


def test_weights_of_two_optimizers_are_looked_at_once(watched):
    weight = torch.nn.Parameter(torch.ones(2))
    watched.optimizers += [torch.optim.SGD([weight]), torch.optim.SGD([weight])]
    assert watched.weights() == [1, 1]


def test_a_step_inside_another_is_a_part_of_it(watched):
    weight = torch.nn.Parameter(torch.ones(2))
    outer, inner = (torch.optim.SGD([weight]) for _ in range(2))
    outer.watched = inner.watched = 1
    watched.optimizers += [outer, inner]
    watched.stepping += [outer, inner]
    watched.stepped(inner)
    watched.stepped(outer)
    assert [note["of"] for note in notes(watched, "step")] == [0]


def test_workers_that_persist_begin_another_pass_of_data_without_a_length(watched):
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter([0, 1])

    loader = DataLoader(Numbers())
    loader.watched_at = loader.watched_as = "train.py:1"
    loader._iterator = iter(loader)  # as persistent workers keep it
    iterate = watch._wrapped(DataLoader.__iter__, watched.passing)
    assert iterate(loader).watched == 1
    assert len(notes(watched, "pass")) == 1


@pytest.mark.parametrize("trained", ["a b", "a a"])
def test_a_run_ends_when_one_loader_was_trained_with_twice(trained, watched, monkeypatch):
    made = watch._wrapped(DataLoader.__init__, watched.loader_made)
    monkeypatch.setattr(DataLoader, "__init__", made)
    data = TensorDataset(torch.arange(2.0))
    loaders = {"a": DataLoader(data)}
    loaders["b"] = DataLoader(data)
    iterate = watch._wrapped(DataLoader.__iter__, watched.passing)
    ended = []
    monkeypatch.setattr(watched, "stop", lambda: ended.append(True))
    watched.saved = True
    for name in trained.split():
        watched.latest = iterate(loaders[name]).watched
        list(watched.backward())
        assert not ended
    iterate(loaders["a"])
    assert bool(ended) == (trained == "a a")


def test_torch_compile_reads_the_script_and_not_what_watches_it(watched):
    hook = watch._quietly(watched.called)
    handle = torch.nn.modules.module.register_module_forward_pre_hook(hook)
    try:
        model = torch.nn.Linear(1, 1)
        compiled = torch.compile(lambda x: model(x), backend="eager", fullgraph=True)
        assert compiled(torch.ones(1, 1)).shape == (1, 1)
    finally:
        handle.remove()


def test_a_folder_is_copied_with_links_that_stay_links(tmp_path):
    source, target = tmp_path / "mine", tmp_path / "copy"
    (source / "package").mkdir(parents=True)
    (source / "package" / "model.py").write_text("mine")
    (source / "images").write_text("images")
    (source / "loop").symlink_to(source)
    (source / "gone.py").symlink_to("nowhere")
    (tmp_path / "data").mkdir()
    (source / "data").symlink_to("../data")
    run._copy(source, target)
    assert (target / "package" / "model.py").read_text() == "mine"
    assert not (target / "package" / "model.py").is_symlink()
    assert (target / "images").resolve() == source / "images"
    assert (target / "loop").resolve() == source
    assert (target / "data").resolve() == tmp_path / "data"
    assert {path.name for path in target.iterdir()} == {path.name for path in source.iterdir()}
