# %% [markdown]
"""
# experts: mixture of experts, expert parallelism

Each rank holds some of the experts of a layer, and every token travels to the rank of its expert.

You want a model with eight times the parameters, and you cannot pay for eight times the operations.
A mixture of experts gives you that, because each token uses only a small part of the model. The
price is that tokens must travel, and that nobody knows beforehand how many go where. In this lesson
you send tokens to their experts and back by an `all_to_all` with unequal parts, count those that
found no room, and watch a router that sends everything to one expert.

    python lessons/model_parallel/experts.py
    torchrun --nproc-per-node 4 lessons/model_parallel/experts.py
"""

# %%
from functools import partial

from collectives import Curve, check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from collectives.pictures.memory_bars import MemoryBars
from dense import dense
from measure import held
from mixture import EXPERTS, Mixture, alone, keep_experts, loss_of, network_of_experts, tokens_of
from model import LENGTH, PARAMETERS, WIDTH
from one_process import UPDATES, train
from token_routes import TokenRoutes

# %% [markdown]
# ## The idea
#
# A [mixture of experts](../../docs/glossary.md#moe) is a layer with several networks, the experts,
# and a small linear layer, the [router](../../docs/glossary.md#router), which chooses one expert
# for each token.
#
# Each rank holds some of the experts. It also has a share of the batch, and because its tokens need
# the experts of all ranks, they travel:
#
# 1. **Dispatch**: the rank sorts its tokens by expert, and `all_to_all_single` sends them there.
# 2. **Compute**: each rank computes its experts with the tokens that arrived.
# 3. **Combine**: a second `all_to_all_single` sends the answers back, and each rank puts them where
#    their tokens were.
#
# A popular expert would keep its rank busy while all other ranks wait. So an expert has a
# [capacity](../../docs/glossary.md#capacity): from each rank it accepts at most 1.25 times its
# equal part of the tokens. Any further token is dropped, which means that the layer adds zero to
# it.

# %% [markdown]
# ## The code
#
# In the two blocks of the model, 8 experts take the place of `up` and `down`. The layer is in
# [mixture.py](../../lessons/model_parallel/mixture.py): it chooses the expert of each token, calls
# `exchanged`, and multiplies the answers by the probability that the router gave to the expert.
# Through this factor the router learns. What is new is `exchanged`, in which `whose` is the number
# of each token's expert, or -1 for a token that is dropped.


# %%
class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sends, receives):
        ctx.back = receives, sends
        arrived = x.new_empty(sum(receives), WIDTH)
        dist.all_to_all_single(arrived, x.contiguous(), receives, sends)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.apply(gradient, *ctx.back), None, None


def my_experts():
    rank, n = dist.get_rank(), dist.get_world_size()
    return range(EXPERTS)[rank * EXPERTS // n : (rank + 1) * EXPERTS // n]


class DispatchedMixture(Mixture):
    dropped = 0

    def exchanged(self, tokens, whose):
        n = dist.get_world_size()
        order = whose.argsort(stable=True)[(whose < 0).sum() :]  # those of nobody come first
        self.dropped += len(tokens) - len(order)
        to_experts = torch.bincount(whose[order], minlength=EXPERTS)
        for_mine = torch.empty_like(to_experts)  # from each rank, for each expert of this rank
        dist.all_to_all_single(for_mine, to_experts)
        sends, receives = (one.view(n, -1).sum(1).tolist() for one in (to_experts, for_mine))
        arrived = AllToAll.apply(tokens[order], sends, receives)
        mine = torch.tensor(my_experts(), device=tokens.device)
        answers = self.answered(arrived, mine.repeat(n).repeat_interleave(for_mine))
        returned = AllToAll.apply(answers, receives, sends)
        result = torch.zeros_like(tokens)
        result[order] = returned
        return result

    def asked(self):
        asked = super().asked()
        dist.all_reduce(asked)
        return asked


def dispatched(device):
    model = network_of_experts(device)
    keep_experts(model, my_experts())
    for block in model[1:3]:
        block.mixture.__class__ = DispatchedMixture  # the same modules, with another `exchanged`
    return model


# %% [markdown]
# ## Training
#
# The rest of the model is data parallel, so `all_reduce` adds up its gradients. The gradient of an
# expert is complete already, because it computes tokens of all ranks. For the comparison, one
# process must drop the same tokens, so it applies the capacity to the share of each rank.

# %% [markdown]
# **Predict first.** Each of the two layers dispatches and combines, in the forward pass and in the
# backward pass. How many times does a step call `all_to_all_single`?


# %%
def on_my_share(model, letters, following, factor=0.0):
    rank, n = dist.get_rank(), dist.get_world_size()
    loss = loss_of(model, letters.chunk(n)[rank], following.chunk(n)[rank], factor)
    (loss / n).backward()
    shared = [one.grad for name, one in model.named_parameters() if ".experts." not in name]
    flat = parameters_to_vector(shared)  # to reduce all in one call
    dist.all_reduce(flat)
    vector_to_parameters(flat, shared)


def train_both(rank, n, device, what, favourites=1, room=1.25):
    """The ranks train, and so does one process: both, and what this rank sent and dropped."""
    whole, model = dense(device, shares=n), dispatched(device)
    for block in (*whole[1:3], *model[1:3]):
        block.mixture.favourites, block.mixture.room = favourites, room
    whole, optimizer = train(whole, device, alone)
    bars = {"one process": held(whole, optimizer)}
    sends, receives, stays = tokens_of(whole, rank, my_experts())
    keep_experts(whole, my_experts())
    computed = []  # by each expert of this rank, in each pass
    for expert in (one for block in model[1:3] for one in block.mixture.experts.values()):
        expert.register_forward_hook(lambda expert, given, answer: computed.append(len(answer)))
    with counting() as counts:
        trained = train(model, device, on_my_share)
    check_training(trained, (whole, optimizer), what, same_bits=False)
    bars["a rank"] = held(*trained)
    # In each block: how many tokens come; tokens and answers; the gradients of both.
    calls, called = counts["c10d.all_to_all_single"]
    most = len(sends) * 8 * EXPERTS + 4 * 8 * WIDTH * sum(map(max, sends, receives))
    check([calls, called], [UPDATES * 2 * 5, most], f"all_to_all_single, {what}")
    check(sum(computed), sum(receives), f"tokens that the experts compute, {what}")
    dropped, tokens = sum(block.mixture.dropped for block in model[1:3]), 8 * LENGTH // n
    check(dropped, UPDATES * 2 * favourites * tokens - sum(sends), f"tokens dropped, {what}")
    sent = 2 * 8 * WIDTH * (sum(sends) + sum(receives) - 2 * sum(stays)) // UPDATES
    routes = TokenRoutes(model[1].mixture.log[0], favourites * tokens)
    numbers = {"calls": calls // UPDATES, "bytes sent": sent, "dropped": dropped}
    return bars, numbers | {"first taken": routes}, receives


@needs(ranks=2)
def experts(rank, world_size, device):
    bars, found, _ = train_both(rank, world_size, device, "experts")
    layers = 2 * (8 * WIDTH**2 + 5 * WIDTH)  # an expert in each block, where `up` and `down` were
    kept = PARAMETERS - layers + 2 * WIDTH * EXPERTS + EXPERTS // world_size * layers
    check([*bars["a rank"].values()][:2], [8 * kept] * 2, "parameters and gradients")
    return found | {"in all": MemoryBars(bars)}


# %%
if __name__ == "__main__":
    run(experts, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 10 times. Two more than you might expect, because in the forward pass each layer first sends how
# many tokens will come. The last column but one shows how many tokens of the rank each expert
# accepted, in the first layer of the first step. At most 10 = 1.25 * 64 / 8 have room.
#
# </details>

# %% [markdown]
# ## Two experts, and no token dropped
#
# A dropped token loses a layer, and nobody who reads the answer knows which one it was. So most
# models of today drop none, and send each token to its two to eight best experts. The layer adds up
# their answers, each times its probability. `exchanged` stays as it is, because a token with two
# experts is two tokens with one each. But one thing is open now that the capacity had fixed: a rank
# must compute as many tokens as come.

# %% [markdown]
# **Predict first.** Each token goes to two experts in place of one. Does a step send twice as many
# bytes as before, more, or fewer?


# %%
@needs(ranks=2)
def two_experts(rank, world_size, device):
    n, what = world_size, "two experts"
    _, found, receives = train_both(rank, n, device, what, favourites=2, room=EXPERTS)
    check(found["dropped"], 0, "tokens dropped, two experts")
    equal_part = 2 * 8 * LENGTH // n
    return found | {"equal part": equal_part, "arrived": f"{min(receives)} to {max(receives)}"}


# %%
if __name__ == "__main__":
    run(two_experts, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# More, because the tokens that were dropped before did not travel.
#
# The last two columns show the price. Over two layers and three steps, a rank's equal part would be
# 128 tokens, but rank 2 had up to 183 to compute while rank 3 had as few as 66. So a rank no longer
# knows how much memory it needs, and all ranks wait for the one with the popular experts. Routers
# that balance matter more now.
#
# </details>

# %% [markdown]
# ## A router that collapses
#
# An expert that gets more tokens learns more, so the router sends it more tokens, and in the end
# one expert may have them all. A [penalty](https://arxiv.org/abs/2101.03961) in the loss prevents
# this. For E experts it is `E * sum(f * p)`, where f is the fraction of the tokens that chose an
# expert, counted over all ranks, and p is the mean of the router's probability for it.
#
# The picture shows how many tokens choose the busiest expert of the second layer. To see a collapse
# within a few steps, the experts have room for all tokens, and Adam's rate is 0.003.

# %% [markdown]
# **Predict first.** A batch has 256 tokens. How many of them does the busiest of the 8 experts get
# in the last step, without the penalty?


# %%
@needs(ranks=2)
def collapsing_router(rank, world_size, device):
    history, longer = {}, {"steps": 25, "rate": 0.003}
    for name, factor in (("no penalty", 0.0), ("0.1 times the penalty", 0.1)):
        whole, mine = dense(device), dispatched(device)
        for block in (*whole[1:3], *mine[1:3]):
            block.mixture.room = EXPERTS
        train(whole, device, partial(alone, factor=factor), **longer)
        train(mine, device, partial(on_my_share, factor=factor), **longer)
        asked = torch.tensor(mine[2].mixture.log).to(device)
        dist.all_reduce(asked)
        history[name] = asked.tolist()
        check(history[name], [log for (log,) in whole[2].mixture.log], f"tokens, {name}")
    busiest = {name: [max(tokens) for tokens in steps] for name, steps in history.items()}
    last, balanced = (steps[-1] for steps in busiest.values())
    check([last, balanced < 2 * 8 * LENGTH / EXPERTS], [8 * LENGTH, True], "the busiest")
    return {"tokens of the busiest expert": Curve(busiest, "tokens of the busiest expert")}


# %%
if __name__ == "__main__":
    run(collapsing_router, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All 256. With the penalty it gets fewer than twice its equal part.
#
# </details>

# %%
STEPS = [experts, two_experts, collapsing_router]

# %% [markdown]
# ## The proof
#
# Parameters and Adam's state equal those of one process, to 1e-9, in which every expert answers
# every token ([dense.py](../../lessons/model_parallel/dense.py)). The numbers of tokens accepted,
# dropped and sent are the same, too.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **In the wrong order.** In `exchanged`, change `result[order] = returned` to
#    `result[: len(order)] = returned`. It says `relative error`.
# 2. **A dropped token is not counted.** In `exchanged`, change `len(tokens) - len(order)` to `0`.
#    It says `[tokens dropped, experts`. The model is right.
# 3. **Averaged experts.** In `on_my_share`, change `".experts." not in name` to `True`. It says
#    `relative error`: experts that have nothing in common are added up.
# 4. **Dropped all the same.** In `two_experts`, change `room=EXPERTS` to `room=1.25`. It says
#    `[tokens dropped, two experts`.
# 5. **Balanced on each rank alone.** In `asked`, change `dist.all_reduce(asked)` to `pass`. It says
#    `[tokens, 0.1 times the penalty`.
#
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice tokens_to_experts
# collectives practice two_experts_each
# ```

# %% [markdown]
# ## Read on
#
# You now have a method for each trouble, but a large training has several troubles at once. Next
# lesson: [mesh](../../notebooks/model_parallel/mesh.ipynb), which combines methods.
