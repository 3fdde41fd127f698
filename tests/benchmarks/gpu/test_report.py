from benchmarks.gpu.report import format_section


def test_bars_in_a_cell_do_not_end_it() -> None:
    metadata = {"command": "c", "date": "d", "hardware": "h", "versions": {}, "rates": ""}
    assert format_section("T", metadata, [{"attention": "paged|sdpa", "none": ""}]).endswith(
        "| attention |\n| ---: |\n| paged\\|sdpa |\n")
