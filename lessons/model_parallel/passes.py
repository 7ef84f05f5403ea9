"""The passes of torch's schedules, noted where these make them: below the class that is called."""


def passes_of(*stages):
    """A list that grows: (kind, micro-batch, part of this rank), as our own orders have them.

    A backward pass in two halves is an "input" pass and a "weights" pass.
    """
    made = []
    names = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
    for part, stage in enumerate(stages):
        for kind, name in zip(("forward", "backward", "weights"), names, strict=True):
            setattr(stage, name, _noted(made, kind, part, getattr(stage, name)))
    return made


def _noted(made, kind, part, call):
    def note(micro_batch, *args, full_backward=True, **options):
        if kind == "backward":
            options["full_backward"] = full_backward
        made.append((kind if full_backward else "input", micro_batch, part))
        return call(micro_batch, *args, **options)

    return note


def kinds_with_gradients(layers, order, made):
    """A set that grows: the kinds of our passes in which a weight gets its gradient.

    `order` has those of a step, and `made` notes each at its end.
    """
    found = set()
    for weight in layers.parameters():
        weight.register_post_accumulate_grad_hook(
            lambda _: found.add(order[len(made) % len(order)][0])
        )
    return found


def in_halves(order, later):
    """Each backward pass in two halves: that of the weights waits for so many others."""
    made, waiting = [], []
    for kind, *one in order:
        if kind == "backward":
            waiting.append(("weights", *one))
        made.append(("input" if kind == "backward" else kind, *one))
        if len(waiting) > later:
            made.append(waiting.pop(0))
    return made + waiting
