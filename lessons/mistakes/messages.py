# %% [markdown]
"""
# messages: send and recv that wait for each other, deadlocks

Three programs in which ranks wait for each other's messages until the time limit.

A message needs two ranks at the same time. If one of them is somewhere else, the program stands
still, and half an hour later an error names a line that may be correct. At the end of this lesson
you can find such a deadlock.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it. Nothing here can harm your machine, so break
more if you like.

    python lessons/mistakes/messages.py
    torchrun --nproc-per-node 4 lessons/mistakes/messages.py
"""

# %%
from collectives import check, cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Program 1: two ranks swap a tensor
#
# **You see.** Nothing happens, and nothing is printed. After 30 minutes, the default time limit of
# gloo, there is an error:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send
# operation to complete
# ```


# %%
@mistake("hangs", ranks=2)
def swap(rank, world_size, device):
    mine, theirs = torch.tensor([rank], device=device), torch.tensor([-1], device=device)
    dist.send(mine, dst=1 - rank)
    dist.recv(theirs, src=1 - rank)
    check(theirs, torch.tensor([1 - rank]), "send, recv")


# %%
if __name__ == "__main__":
    run(swap, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: both ranks send first.** On gloo, `send` returns only when the receiver has taken the
# message. Here each rank waits in `send`, so neither comes to its `recv`. (A library that buffers
# small messages hides the mistake until the messages grow.)
#
# **Cure.** Let one rank send first and the other receive first. For more than two ranks, use
# `batch_isend_irecv`.
#
# **Early.** Look at each `send` and ask: which rank is in `recv` at this moment?
#
# </details>


# %%
@cure(ranks=2)
def one_receives_first(rank, world_size, device):
    mine, theirs = torch.tensor([rank], device=device), torch.tensor([-1], device=device)
    if rank == 0:
        dist.send(mine, dst=1)
        dist.recv(theirs, src=1)
    else:
        dist.recv(theirs, src=0)
        dist.send(mine, dst=0)
    check(theirs, torch.tensor([1 - rank]), "send, recv")
    return {"sent": mine, "received": theirs}


# %%
if __name__ == "__main__":
    run(one_receives_first, folded=True)

# %% [markdown]
# ## Program 2: three ranks pass a token round a ring
#
# **You see.** The token never starts. After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv
# operation to complete
# ```


# %%
@mistake("hangs", ranks=3)
def pass_a_token(rank, world_size, device):
    token = torch.tensor([0], device=device)
    dist.recv(token, src=(rank - 1) % world_size)
    token += 1
    dist.send(token, dst=(rank + 1) % world_size)
    check(token, torch.tensor([rank + 1]), "recv, send")


# %%
if __name__ == "__main__":
    run(pass_a_token, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: every rank receives first.** Every rank waits for its left neighbour, all the way round.
# Each pair of neighbours looks right, so you find the mistake only if you look at the whole ring.
#
# **Cure.** Let one rank send first.
#
# **Early.** If all ranks of a ring follow the same rule, "receive, then send", they form a cycle,
# so one rank must be the exception.
#
# </details>


# %%
@cure(ranks=3)
def rank_0_begins(rank, world_size, device):
    token = torch.tensor([0], device=device)
    if rank > 0:
        dist.recv(token, src=rank - 1)
    token += 1
    dist.send(token, dst=(rank + 1) % world_size)
    if rank == 0:
        dist.recv(token, src=world_size - 1)
    check(token, torch.tensor([rank + 1 if rank else world_size]), "recv, send")
    return {"token": token}


# %%
if __name__ == "__main__":
    run(rank_0_begins, folded=True)

# %% [markdown]
# ## Program 3: one rank sends, the other receives
#
# **You see.** Each rank names the right peer, and yet both wait. After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv
# operation to complete
# ```


# %%
@mistake("hangs", ranks=2)
def send_activations(rank, world_size, device):
    x = torch.tensor([rank], device=device)
    if rank == 0:
        dist.send(x, dst=1, tag=1)
    else:
        dist.recv(x, src=0, tag=2)
    check(x, torch.tensor([0]), "send, recv with a tag")


# %%
if __name__ == "__main__":
    run(send_activations, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the tags differ.** A receive takes only a message with its own
# [tag](../../docs/glossary.md#tag), but the error does not mention tags. On NCCL, tags do not work
# (`torch/distributed/distributed_c10d.py`: "``tag`` is not supported with the NCCL backend").
#
# **Cure.** Use the same tag at both ends. Better, give the tag one name that both ends read.
#
# **Early.** Most programs need no tags, because messages between two ranks arrive in the order in
# which they were sent.
#
# </details>


# %%
@cure(ranks=2)
def one_name_for_the_tag(rank, world_size, device):
    activations = 1
    x = torch.tensor([rank], device=device)
    if rank == 0:
        dist.send(x, dst=1, tag=activations)
    else:
        dist.recv(x, src=0, tag=activations)
    check(x, torch.tensor([0]), "send, recv with a tag")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(one_name_for_the_tag, folded=True)

# %% [markdown]
# ## Fix it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice left_first
# collectives practice whose_message
# ```
#
# Next lesson: [order](../../notebooks/mistakes/order.ipynb), in which all ranks must make the same
# calls.

# %%
STEPS = [
    swap,
    one_receives_first,
    pass_a_token,
    rank_0_begins,
    send_activations,
    one_name_for_the_tag,
]
