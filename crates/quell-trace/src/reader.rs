//! Lines of any file, in constant memory.

use std::io::{self, BufRead};

/// Longest line that is kept; ftrace itself prints at most 8 KiB at once.
pub const MAX_LINE_BYTES: usize = 16 << 10;

/// Reads line by line. What is beyond [`MAX_LINE_BYTES`] of a line is skipped, and bytes that are not UTF-8 are
/// replaced.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    bytes: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self { input, bytes: Vec::new() }
    }

    /// Puts the next line without its end into `line`; `false` at the end of the input.
    ///
    /// # Errors
    /// What the input reports.
    pub fn next(&mut self, line: &mut String) -> io::Result<bool> {
        self.bytes.clear();
        let mut any = false;
        loop {
            let buffer = match self.input.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if buffer.is_empty() {
                break;
            }
            any = true;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let room = MAX_LINE_BYTES.saturating_sub(self.bytes.len());
            self.bytes.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                break;
            }
        }
        if self.bytes.last() == Some(&b'\r') {
            self.bytes.pop();
        }
        line.clear();
        line.push_str(&String::from_utf8_lossy(&self.bytes));
        Ok(any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8]) -> Vec<String> {
        // A tiny buffer, so that lines span several reads.
        let mut lines = Lines::new(io::BufReader::with_capacity(3, input));
        let (mut line, mut all) = (String::new(), Vec::new());
        while lines.next(&mut line).unwrap() {
            all.push(line.clone());
        }
        all
    }

    #[test]
    fn lines_come_whole_with_any_ending() {
        assert_eq!(all(b"one\n\ntwo\r\nlast"), ["one", "", "two", "last"]);
        assert_eq!(all(b""), Vec::<String>::new());
        assert_eq!(all(b"\xff\n"), ["\u{fffd}"]);
    }

    #[test]
    fn an_endless_line_does_not_fill_the_memory() {
        let long = [vec![b'x'; 3 * MAX_LINE_BYTES], b"\nnext\n".to_vec()].concat();
        let lines = all(&long);
        assert_eq!((lines[0].len(), lines[1].as_str()), (MAX_LINE_BYTES, "next"));
    }
}
