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


def passes_with_gradients(layers, made):
    """A set that grows: the numbers of our passes in which a weight gets its gradient.

    `made` notes each pass at its end.
    """
    found = set()
    for weight in layers.parameters():
        weight.register_post_accumulate_grad_hook(lambda _: found.add(len(made)))
    return found
