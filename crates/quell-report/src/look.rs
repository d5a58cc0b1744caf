//! How the caller wants text to look.

/// Width and color of text output.
///
/// The default is for files and pipes: as wide as needed, without color.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Columns of the terminal; `None` if the text does not go to one.
    pub width: Option<u16>,
    /// Whether ANSI color codes may be used.
    pub color: bool,
}

/// What a piece of text means to the reader; a color if [`Look::color`] is set, otherwise nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Ordinary text.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Worth a look.
    Notice,
    /// A problem.
    Bad,
    /// Not known, or of minor interest.
    Faint,
}

/// Replaces control characters by spaces, so that foreign text cannot move the cursor, change colors or
/// make a document ill-formed. `keep` names characters that stay.
pub(crate) fn printable(text: &str, keep: &[char]) -> String {
    // U+FFFE and U+FFFF are not control characters in Unicode but are forbidden in XML.
    let forbidden = |c: char| (c.is_control() && !keep.contains(&c)) || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if forbidden(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(printable("a\x1b[31mb\nc\td", &['\n']), "a [31mb\nc d");
    }
}
