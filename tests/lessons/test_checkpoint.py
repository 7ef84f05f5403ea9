"""A checkpoint survives what happens to its file; one of another model is refused."""

import contextlib
import functools
import io
import resource
import signal
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch

from collectives import check_training, launch
from collectives.course import files

FILE = files.find("training/checkpoint")


def cut_off(file, save_again):
    file.write_bytes(file.read_bytes()[:2000])


def empty(file, save_again):
    file.write_bytes(b"")


def wrong_bit(file, save_again):
    """In the first tensor: torch.load does not notice it."""
    with zipfile.ZipFile(file) as archive:
        (tensor,) = (one for one in archive.infolist() if one.filename.endswith("/data/0"))
    data = bytearray(file.read_bytes())
    data[tensor.header_offset + 500] ^= 1
    file.write_bytes(data)
    torch.load(file)


def killed_while_writing(file, save_again):
    """The draft is half written, and never gets its name."""
    cut_off(file, save_again)
    file.replace(file.with_name("draft"))


def full_disk(file, save_again):
    """A limit on the size of files: the system call fails as on a disk without room."""
    file.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(OSError, match=r"^\[Errno 27\] File too large$"):
            save_again()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


DAMAGES = [cut_off, empty, wrong_bit, killed_while_writing, full_disk]


def continue_after(rank, world_size, device, damages):
    """Runs in a rank: for each damage to step 10, how many steps follow, and what it says."""
    lesson = files.load(FILE)
    batches = lesson.shuffled().split(60)[:11]
    train = functools.partial(lesson.train, backward=lesson.on_my_shard, device=device)
    expected, _ = train(lesson.network(0, device), batches=batches)
    found = {}
    for damage in damages:
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            trained, _ = train(lesson.network(0, device), batches=batches[:10], folder=folder)

            def save_again(folder=folder, trained=trained):
                lesson.dist.all_gather_object = lambda *arguments: None  # rank 0 saves alone
                model, optimizer = trained
                schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
                lesson.save(folder, 10, model, optimizer, schedule)

            real = lesson.dist.all_gather_object
            if rank == 0:
                damage(Path(folder, "step-0010.pt"), save_again)
            lesson.dist.all_gather_object = real
            with contextlib.redirect_stderr(said):
                got, losses = train(lesson.network(1, device), batches=batches, folder=folder)
        check_training(got, expected, damage.__name__, limit=0.0)
        found[damage.__name__] = len(losses.values), said.getvalue()
    return found


def test_the_older_checkpoint_is_kept_and_the_training_continues_from_it_bit_for_bit():
    """And rank 0 says so, in one sentence, if a file with a name is damaged."""
    said = "step-0010.pt is damaged: continuing from step-0005.pt.\n"
    by_rank_0 = {damage.__name__: (6, said) for damage in (cut_off, empty, wrong_bit)}
    quietly = {damage.__name__: (6, "") for damage in DAMAGES}
    found = launch(continue_after, 2, args=(DAMAGES,), backend="gloo", timeout=100.0)
    assert found == [quietly | by_rank_0, quietly]


def refuse(rank, world_size, device, folder):
    """Runs in a rank: what it says when it loads a checkpoint into a model with one unit less."""
    lesson = files.load(FILE)
    model = lesson.network(0, device)
    lesson.save(folder, 5, model, torch.optim.SGD(model.parameters()))
    lesson.dist.barrier()
    smaller = torch.nn.Sequential(torch.nn.Linear(64, 31), torch.nn.Linear(31, 10)).double()
    try:
        lesson.load(folder, smaller, torch.optim.SGD(smaller.parameters()))
    except RuntimeError as error:
        return str(error)


def test_a_checkpoint_of_another_model_is_refused_by_every_rank(tmp_path):
    for said in launch(refuse, 2, args=(tmp_path,), backend="gloo"):
        assert "size mismatch for 0.bias" in said


def continue_on(rank, world_size, device, folder, count):
    """Runs in a rank: trains these batches in a folder, and compares with one process."""
    lesson = files.load(FILE)
    batches = lesson.shuffled().split(60)[:count]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        got, losses = lesson.train(
            lesson.network(0, device), lesson.on_my_shard, batches, device, folder
        )
    expected, _ = lesson.train(lesson.network(0, device), lesson.batch_loss, batches, device)
    check_training(got, expected, "another number of ranks")
    return len(losses.values), said.getvalue()


def test_on_another_number_of_ranks_it_continues_and_says_that_bits_are_lost(tmp_path):
    assert launch(continue_on, 3, args=(tmp_path, 7), backend="gloo") == [(7, "")] * 3
    said = "from another number of ranks: the bits will differ.\n"
    assert launch(continue_on, 2, args=(tmp_path, 11), backend="gloo") == [(6, said), (6, "")]
