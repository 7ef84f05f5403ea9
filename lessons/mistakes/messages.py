# %% [markdown]
"""
# messages

Three ways for ranks to wait for each other's messages until the time limit.

You will see each program hang, the line in which every rank waits, and the same program cured. Each
mistake runs in ranks of its own for a second or two. Nothing here can harm your machine: break more
if you like.

    python lessons/mistakes/messages.py
    torchrun --nproc-per-node 4 lessons/mistakes/messages.py
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Both send first
#
# **Symptom.** Two ranks swap a tensor. Nothing happens, and there is no message. After 30 minutes,
# the default time limit of gloo, an error comes at last:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send
# operation to complete
# ```


# %%
@mistake("hangs", ranks=2)
def both_send_first(rank, world_size, device):
    mine, theirs = torch.tensor([rank], device=device), torch.tensor([-1], device=device)
    dist.send(mine, dst=1 - rank)
    dist.recv(theirs, src=1 - rank)
    check(theirs, torch.tensor([1 - rank]), "send, recv")


# %%
if __name__ == "__main__":
    run(both_send_first)

# %% [markdown]
# **Cause.** On gloo, `send` returns when the receiver has taken the message. Here neither rank
# receives before it has sent. (Libraries that buffer small messages hide the mistake until the day
# the messages grow.)
#
# **Cure.** One rank sends first, the other receives first. For more than two ranks, use
# `batch_isend_irecv`.
#
# **Early.** Look at each `send` and ask: which rank is in `recv` at this moment?


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
    run(one_receives_first)

# %% [markdown]
# ## A cycle of receives
#
# **Symptom.** A token should travel round a ring of three ranks. It never starts. After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv
# operation to complete
# ```


# %%
@mistake("hangs", ranks=3)
def cycle_of_receives(rank, world_size, device):
    token = torch.tensor([0], device=device)
    dist.recv(token, src=(rank - 1) % world_size)
    token += 1
    dist.send(token, dst=(rank + 1) % world_size)
    check(token, torch.tensor([rank + 1]), "recv, send")


# %%
if __name__ == "__main__":
    run(cycle_of_receives)

# %% [markdown]
# **Cause.** Every rank waits for its left neighbour, all the way round. No pair of ranks is in
# conflict, so checking pairs finds nothing.
#
# **Cure.** One rank sends first.
#
# **Early.** If all ranks of a ring follow the same rule, "receive, then send", they form a cycle.
# One rank must be the exception.


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
    run(rank_0_begins)

# %% [markdown]
# ## Tags that do not match
#
# **Symptom.** One rank sends, the other receives, and each names the right rank. Both wait. The
# errors after 30 minutes do not mention tags:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv
# operation to complete
# ```


# %%
@mistake("hangs", ranks=2)
def tags_that_do_not_match(rank, world_size, device):
    x = torch.tensor([rank], device=device)
    if rank == 0:
        dist.send(x, dst=1, tag=1)
    else:
        dist.recv(x, src=0, tag=2)
    check(x, torch.tensor([0]), "send, recv with a tag")


# %%
if __name__ == "__main__":
    run(tags_that_do_not_match)

# %% [markdown]
# **Cause.** A receive takes only a message with its own tag. NCCL ignores tags (documented). There
# this program "works", but two messages that only their tags distinguish can be confused.
#
# **Cure.** Use the same tag at both ends. Better, give the tag one name that both ends read.
#
# **Early.** Most programs need no tags: messages between two ranks arrive in the order in which
# they were sent.


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
    run(one_name_for_the_tag)

# %%
STEPS = [
    both_send_first,
    one_receives_first,
    cycle_of_receives,
    rank_0_begins,
    tags_that_do_not_match,
    one_name_for_the_tag,
]
