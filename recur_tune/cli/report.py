"""`recur-tune report` and `compare`: the results of searches as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from recur_tune.cli.display import note, stderr, stdout, table_by_name
from recur_tune.cli.options import open_search, results_option
from recur_tune.search.record.damage import damage_notice
from recur_tune.search.record.directory import results_folder

_out = click.option("--out", type=click.Path(path_type=Path), help="The file to write; pictures lie beside it.")
_png = click.option("--png", is_flag=True, help="A picture too.")


@click.command()
@click.argument("name", required=False)
@_out
@_png
@click.option("--pdf", is_flag=True, help="The picture as PDF, for papers.")
@results_option
def report(name: str | None, out: Path | None, png: bool, pdf: bool, results: Path | None) -> None:
    """Write one page with all results of a search, by default the latest; it works offline and can be sent as a file.

    It has the front with the command that trains each point again, quality by window size, the hypervolume over
    time, learning curves, parallel coordinates, parameter importance, and the workers' timeline.

    \b
      recur-tune report books                      # results/books/report.html
      recur-tune report books --out books.html --png --pdf
    """
    directory = open_search(results, name)
    with stderr.status("drawing …"):
        from recur_tune.report.figures.pictures import picture_paths, write_picture
        from recur_tune.report.page import picture_panels, report_page, report_panels, write_page
        from recur_tune.report.search_view import read_search

        search = read_search(directory)
        panels = report_panels(search)
        path = out or directory.path / "report.html"
        pictures = picture_paths(path, png, pdf)
        write_page(report_page(search, panels), path)
        for picture in pictures:
            write_picture(picture_panels(panels), directory.name, picture)
    for written in (path, *pictures):
        click.echo(written)
    if words := damage_notice(directory, search.state):
        note(words)


@click.command()
@click.argument("names", nargs=-1, metavar="NAME NAME...")
@_out
@_png
@results_option
def compare(names: tuple[str, ...], out: Path | None, png: bool, results: Path | None) -> None:
    """Compare two or more searches: their fronts in one figure, their numbers in one table.

    What cannot be compared, as perplexities of different texts, is left out with a note.

    \b
      recur-tune compare books books-wide
      recur-tune compare books enwik8 --out both.html --png
    """
    folder = results_folder(results)
    with stderr.status("drawing …"):
        from recur_tune.report.compare import compare_page, comparison, default_file
        from recur_tune.report.figures.pictures import picture_paths, write_picture
        from recur_tune.report.page import write_page

        made = comparison(folder, names)
        path = out or folder / default_file(names)
        pictures = picture_paths(path, png, pdf=False)
        write_page(compare_page(made), path)
        for picture in pictures:
            write_picture([made.panel], made.title, picture)
    for remark in made.remarks:
        note(remark)
    table = table_by_name(made.columns)
    for row in made.rows:
        table.add_row(*row)
    stdout.print(table)
    for written in (path, *pictures):
        click.echo(written, err=True)
