//! A histogram as text: one line a bin, one bar a class.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Histogram, Series};
use crate::look::{Look, printable};
use crate::number::significant;

const DEFAULT_WIDTH: usize = 80;
/// A bar shorter than this does not show a shape; the classes are then drawn below each other.
const SHORTEST_BAR: usize = 8;
const LONGEST_BAR: usize = 40;
/// ANSI foreground colors that can be told apart on dark and light backgrounds: blue, yellow, cyan, magenta.
const COLORS: [u8; 4] = [34, 33, 36, 35];

impl Histogram {
    /// The histogram as text: a line for each bin with a bar and a count for each class, side by side if
    /// [`Look::width`] (80 if there is none) allows it. Each class's longest bar is its fullest bin.
    ///
    /// `unit` names the unit of the values, for example `ticks`.
    #[must_use]
    pub fn render(&self, unit: &str, look: Look) -> String {
        let width = look.width.map_or(DEFAULT_WIDTH, usize::from);
        let layout = Layout::new(self, unit);
        let all: Vec<usize> = (0..self.series.len()).collect();
        let text = match layout.bar(&all, width) {
            Some(bar) => layout.block(&all, bar, look.color),
            None => {
                let one = |&series: &usize| {
                    let bar = layout.bar(&[series], width).unwrap_or(SHORTEST_BAR);
                    layout.block(&[series], bar, look.color)
                };
                all.iter().map(one).collect::<Vec<_>>().join("\n")
            }
        };
        text + &layout.notes()
    }
}

/// What a line of the histogram stands for.
#[derive(Clone, Copy)]
enum Row {
    Below,
    Bin(usize),
    Above,
}

impl Row {
    fn count(self, series: &Series) -> u64 {
        match self {
            Self::Below => series.below,
            Self::Bin(bin) => series.counts[bin],
            Self::Above => series.above,
        }
    }
}

/// The parts of the text that do not depend on the width of the bars.
struct Layout<'a> {
    histogram: &'a Histogram,
    unit: String,
    rows: Vec<(Row, String)>,
    /// Marks at the end of each row.
    marks: Vec<String>,
    labels_width: usize,
    marks_width: usize,
    counts_width: usize,
}

impl<'a> Layout<'a> {
    fn new(histogram: &'a Histogram, unit: &str) -> Self {
        let unit = printable(unit, &[]);
        let edges = &histogram.bins.edges;
        let (first, last) = (significant(edges[0]), significant(edges[edges.len() - 1]));
        let bins = edges.windows(2).enumerate().map(|(index, pair)| {
            (Row::Bin(index), format!("{}-{}", significant(pair[0]), significant(pair[1])))
        });
        let any = |row: Row| histogram.series.iter().any(|series| row.count(series) > 0);
        let rows: Vec<_> = [(Row::Below, format!("below {first}"))]
            .into_iter()
            .chain(bins)
            .chain([(Row::Above, format!("above {last}"))])
            .filter(|(row, _)| matches!(row, Row::Bin(_)) || any(*row))
            .collect();
        let marks: Vec<_> = rows.iter().map(|(row, _)| marks_of(histogram, *row)).collect();
        let labels = rows.iter().map(|(_, label)| label.width());
        let counts = rows
            .iter()
            .flat_map(|(row, _)| histogram.series.iter().map(|series| row.count(series).to_string().len()));
        Self {
            labels_width: labels.chain([unit.width()]).max().unwrap_or(0),
            marks_width: marks.iter().map(|text| text.width()).max().unwrap_or(0),
            counts_width: counts.max().unwrap_or(1),
            histogram,
            unit,
            rows,
            marks,
        }
    }

    /// Length of the longest bar if these classes are to stand side by side; `None` if they do not fit.
    fn bar(&self, series: &[usize], width: usize) -> Option<usize> {
        let per_series = width.checked_sub(self.labels_width + self.marks_width)? / series.len().max(1);
        let bar = per_series.checked_sub(self.counts_width + 3)?;
        (bar >= SHORTEST_BAR).then_some(bar.min(LONGEST_BAR))
    }

    /// The lines for these classes side by side.
    fn block(&self, chosen: &[usize], bar: usize, color: bool) -> String {
        let series = || chosen.iter().map(|&index| (index, &self.histogram.series[index]));
        let mut header = " ".repeat(self.labels_width - self.unit.width()) + &self.unit;
        for (_, series) in series() {
            let title = format!("{} (n={})", printable(&series.label, &[]), series.total());
            header += "  ";
            header += &if chosen.len() > 1 { cut(&title, bar + 1 + self.counts_width) } else { title };
        }
        let mut text = header.trim_end().to_owned() + "\n";
        for ((row, label), marks) in self.rows.iter().zip(&self.marks) {
            let mut line = format!("{label:>0$}", self.labels_width);
            for (index, series) in series() {
                let fullest = self.rows.iter().map(|(row, _)| row.count(series)).max().unwrap_or(0);
                let count = row.count(series);
                let drawn = blocks(count, fullest, bar);
                let blank = " ".repeat(bar - drawn.width());
                let drawn = match COLORS[index % COLORS.len()] {
                    code if color && !drawn.is_empty() => format!("\x1b[{code}m{drawn}\x1b[0m"),
                    _ => drawn,
                };
                line += &format!("  {drawn}{blank} {count:>0$}", self.counts_width);
            }
            line += marks;
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// What the bars cannot show.
    fn notes(&self) -> String {
        let mut text = String::new();
        for series in self.histogram.series.iter().filter(|series| series.not_numbers > 0) {
            let label = printable(&series.label, &[]);
            text += &format!("{label}: {} values are not numbers and not shown\n", series.not_numbers);
        }
        text
    }
}

/// The marks that lie in a row, as text to stand at its end.
fn marks_of(histogram: &Histogram, row: Row) -> String {
    let bins = &histogram.bins;
    let here = |at: f64| match row {
        Row::Below => at < bins.edges[0],
        Row::Bin(bin) => bins.find(at) == Some(bin),
        Row::Above => at > bins.edges[bins.count()],
    };
    let marks: Vec<_> = histogram
        .marks
        .iter()
        .filter(|mark| here(mark.at))
        .map(|mark| format!("{} {}", printable(&mark.label, &[]), significant(mark.at)))
        .collect();
    if marks.is_empty() { String::new() } else { format!("  <- {}", marks.join(", ")) }
}

/// A bar of eighths of a character; any count above zero shows at least one eighth.
fn blocks(count: u64, fullest: u64, length: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if count == 0 {
        return String::new();
    }
    let eighths = ((count as f64 / fullest as f64 * length as f64 * 8.0).round() as usize).max(1);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Cuts or pads text to exactly this many columns; a cut is shown by `…`.
fn cut(text: &str, columns: usize) -> String {
    let fits = text.width() <= columns;
    let room = if fits { columns } else { columns.saturating_sub(1) };
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let width = c.width().unwrap_or(0);
        if used + width > room {
            break;
        }
        out.push(c);
        used += width;
    }
    if !fits && columns > 0 {
        out.push('…');
        used += 1;
    }
    out + &" ".repeat(columns - used)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Bins;

    fn sample() -> Histogram {
        let mut histogram = Histogram::new(Bins::log(32.0, 512.0, 4).unwrap());
        histogram
            .add("L2 hit", [40.0; 16].into_iter().chain([70.0; 2]))
            .add("LLC hit", [70.0; 5].into_iter().chain([130.0]))
            .add("DRAM", [260.0; 7].into_iter().chain([600.0; 3]))
            .mark("L2 | LLC", 63.0)
            .mark("LLC | DRAM", 200.0);
        histogram
    }

    #[test]
    fn classes_stand_side_by_side_with_marks_and_outliers() {
        assert_eq!(
            format!("\n{}", sample().render("ticks", Look { width: Some(80), color: false })),
            "
    ticks  L2 hit (n=18)    LLC hit (n=6)    DRAM (n=10)
32.0-64.0  ████████████ 16                0                0  <- L2 | LLC 63.0
 64.0-128  █▌            2  ████████████  5                0
  128-256                0  ██▍           1                0  <- LLC | DRAM 200
  256-512                0                0  ████████████  7
above 512                0                0  █████▏        3
"
        );
    }

    #[test]
    fn a_narrow_terminal_gets_the_classes_below_each_other() {
        assert_eq!(
            format!("\n{}", sample().render("ticks", Look { width: Some(40), color: false })),
            "
    ticks  L2 hit (n=18)
32.0-64.0  ████████ 16  <- L2 | LLC 63.0
 64.0-128  █         2
  128-256            0  <- LLC | DRAM 200
  256-512            0
above 512            0

    ticks  LLC hit (n=6)
32.0-64.0            0  <- L2 | LLC 63.0
 64.0-128  ████████  5
  128-256  █▋        1  <- LLC | DRAM 200
  256-512            0
above 512            0

    ticks  DRAM (n=10)
32.0-64.0            0  <- L2 | LLC 63.0
 64.0-128            0
  128-256            0  <- LLC | DRAM 200
  256-512  ████████  7
above 512  ███▍      3
"
        );
    }

    #[test]
    fn color_only_on_request() {
        assert!(!sample().render("ticks", Look::default()).contains('\x1b'));
        assert!(sample().render("ticks", Look { width: None, color: true }).contains("\x1b[34m█"));
    }

    #[test]
    fn values_that_are_not_numbers_are_reported() {
        let mut histogram = Histogram::new(Bins::linear(0.0, 2.0, 2).unwrap());
        histogram.add("a", [0.5, f64::NAN]);
        let text = histogram.render("ms", Look::default());
        assert!(text.ends_with("a: 1 values are not numbers and not shown\n"), "{text}");
    }

    #[test]
    fn a_single_value_is_visible_next_to_many() {
        assert_eq!(blocks(1, 1_000_000, 10), "▏");
        assert_eq!(blocks(1_000_000, 1_000_000, 10), "█".repeat(10));
        assert_eq!(blocks(0, 5, 10), "");
    }

    #[test]
    fn long_labels_are_cut_by_display_width() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("缓存命中", 5), "缓存…");
        assert_eq!(cut("ab", 4), "ab  ");
        assert_eq!(cut("ab", 0), "");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            data in prop::collection::vec(prop::collection::vec(0.0..2000.0f64, 0..40), 0..5),
            width in 60..160u16,
        ) {
            let mut histogram = Histogram::new(Bins::log(10.0, 1000.0, 12).unwrap());
            for (index, values) in data.into_iter().enumerate() {
                histogram.add(format!("class {index}"), values);
            }
            histogram.mark("threshold", 150.0);
            let text = histogram.render("ticks", Look { width: Some(width), color: false });
            prop_assert!(text.lines().all(|line| line.width() <= usize::from(width)), "{}", text);
        }

        #[test]
        fn any_input_renders(label: String, unit: String, values: Vec<f64>, at: f64, width: u16) {
            let mut histogram = Histogram::new(Bins::linear(-1.0, 1.0, 3).unwrap());
            histogram.add(label, values).mark("m", at);
            let text = histogram.render(&unit, Look { width: Some(width), color: false });
            prop_assert!(text.lines().count() >= 3);
        }
    }
}
