//! Aligned text tables.

use comfy_table::{
    Cell as Drawn, CellAlignment, Color, ContentArrangement, LineStyle, Table as Grid, TableStyle,
};

use crate::look::{Look, Tone, printable};

/// A column: its header and how its cells are aligned.
#[derive(Clone, Debug)]
pub struct Column {
    header: String,
    alignment: CellAlignment,
}

impl Column {
    /// A column of words, aligned left.
    #[must_use]
    pub fn text(header: impl Into<String>) -> Self {
        Self { header: header.into(), alignment: CellAlignment::Left }
    }

    /// A column of numbers, aligned right.
    #[must_use]
    pub fn number(header: impl Into<String>) -> Self {
        Self { header: header.into(), alignment: CellAlignment::Right }
    }
}

/// One cell. Line breaks are kept, other control characters are printed as spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with a meaning that color can show.
    #[must_use]
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

/// A table that is filled row by row and then rendered.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table with these columns.
    #[must_use]
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row. Missing cells are blank; cells beyond the last column form columns without a header.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) -> &mut Self {
        self.rows.push(cells.into_iter().collect());
        self
    }

    /// The table as text, every line ended, without trailing spaces.
    ///
    /// If it is wider than [`Look::width`], long cells are wrapped.
    #[must_use]
    pub fn render(&self, look: Look) -> String {
        let width = self.rows.iter().map(Vec::len).chain([self.columns.len()]).max().unwrap_or(0);
        let mut grid = Grid::new();
        grid.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─')));
        grid.set_header(
            (0..width)
                .map(|index| self.columns.get(index).map_or_else(|| "", |column| column.header.as_str())),
        );
        for row in &self.rows {
            grid.add_row((0..width).map(|index| row.get(index).map_or_else(|| Drawn::new(""), draw)));
        }
        for (index, column) in grid.column_iter_mut().enumerate() {
            column.set_padding((0, if index + 1 < width { 2 } else { 0 }));
            if let Some(ours) = self.columns.get(index) {
                column.set_cell_alignment(ours.alignment);
            }
        }
        match look.width {
            Some(columns) => grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns),
            None => grid.set_content_arrangement(ContentArrangement::Disabled),
        };
        if look.color {
            grid.enforce_styling().style_text_only();
        } else {
            grid.force_no_tty();
        }
        grid.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
    }
}

fn draw(cell: &Cell) -> Drawn {
    let drawn = Drawn::new(printable(&cell.text, &['\n']));
    match cell.tone {
        Tone::Plain => drawn,
        Tone::Good => drawn.fg(Color::Green),
        Tone::Notice => drawn.fg(Color::Yellow),
        Tone::Bad => drawn.fg(Color::Red),
        Tone::Faint => drawn.fg(Color::DarkGrey),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::*;

    fn sample() -> Table {
        let mut table = Table::new([
            Column::text("LLC"),
            Column::number("vCPUs"),
            Column::number("half-life"),
            Column::text("tier"),
        ]);
        table
            .row(["0".into(), "4".into(), "3.2 ms (2.9-3.6)".into(), Cell::toned("heavy", Tone::Bad)])
            .row(["1".into(), "12".into(), "unknown: too noisy".into(), Cell::toned("unknown", Tone::Faint)]);
        table
    }

    #[test]
    fn numbers_are_aligned_right_and_words_left() {
        assert_eq!(
            sample().render(Look::default()),
            "\
LLC  vCPUs           half-life  tier
───────────────────────────────────────
0        4    3.2 ms (2.9-3.6)  heavy
1       12  unknown: too noisy  unknown
"
        );
    }

    #[test]
    fn a_narrow_terminal_wraps_long_cells() {
        let text = sample().render(Look { width: Some(30), color: false });
        assert!(text.lines().all(|line| line.width() <= 30), "too wide:\n{text}");
        assert!(text.lines().count() > 4, "nothing was wrapped:\n{text}");
    }

    #[test]
    fn color_is_used_only_on_request_and_changes_nothing_else() {
        let plain = sample().render(Look::default());
        let color = sample().render(Look { width: None, color: true });
        assert!(!plain.contains('\x1b'));
        assert!(color.contains("\x1b[") && color.contains("heavy"));
        let mut stripped = String::new();
        let mut rest = color.as_str();
        while let Some(start) = rest.find("\x1b[") {
            stripped += &rest[..start];
            rest = &rest[start + rest[start..].find('m').unwrap() + 1..];
        }
        stripped += rest;
        assert_eq!(stripped, plain);
    }

    #[test]
    fn rows_may_be_shorter_or_longer_than_the_header() {
        let mut table = Table::new([Column::text("a"), Column::number("b")]);
        table.row(["1".into()]).row(["2".into(), "3".into(), "4".into()]);
        assert_eq!(table.render(Look::default()), "a  b\n───────\n1\n2  3  4\n");
    }

    proptest! {
        #[test]
        fn any_text_and_width_render(cells in prop::collection::vec(".*", 0..6), width in 0..200u16) {
            let mut table = Table::new([Column::text("first"), Column::number("second")]);
            table.row(cells.into_iter().map(Cell::from));
            let text = table.render(Look { width: Some(width), color: false });
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
