"""What a reader sees of a figure: how large its letters are, and what crosses them."""

COLUMN = 850  # pixels: the width of a notebook's column


def pixels(text) -> float:
    """The size of a text when its figure is shown in a column, which it may have to shrink for."""
    figure = text.get_figure()
    return text.get_fontsize() * 96 / 72 * min(1, COLUMN / (figure.get_figwidth() * 96))


def texts(figure) -> list:
    return [text for text in figure.axes[0].texts if text.get_text()]


def too_small(figure, least: float = 11) -> list[str]:
    """The texts that a reader of the column cannot read."""
    return [text.get_text() for text in texts(figure) if pixels(text) < least]


def crossed(figure) -> list[tuple[str, str]]:
    """(arrow or line, text) for each text that an arrow or a marked line goes through."""
    figure.draw_without_rendering()
    axes = figure.axes[0]
    lines = [(line.get_gid(), line) for line in axes.lines if line.get_gid()]
    arrows = [(arrow.get_gid(), arrow) for arrow in axes.patches if _is_arrow(arrow)]
    found = []
    for name, shape in lines + arrows:
        path = shape.get_transform().transform_path(way(shape))
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
        # A dotted line is drawn behind the bars: only its dots can hide words.
        is_hit = _has_a_point_in if "/" in name and "-" not in name else _goes_through
        found += [(name, words) for words, box in boxes if is_hit(path, box)]
    return found


def to_hex(colour) -> str:
    from matplotlib import colors  # late: whoever only collects the tests does not wait for it

    return colors.to_hex(colour)


def way(shape):
    """The points of a line, or of an arrow without its head, in the units of the axes."""
    from matplotlib.path import Path

    if not hasattr(shape, "get_arrowstyle"):
        return shape.get_path()
    return shape._path_original or Path(shape._posA_posB)


def _is_arrow(patch) -> bool:
    return hasattr(patch, "get_arrowstyle") and patch.get_gid() is not None


def _goes_through(path, box) -> bool:
    return path.intersects_bbox(box, filled=False)


def _has_a_point_in(path, box) -> bool:
    return any(box.contains(x, y) for x, y in path.vertices)
