//! Archives in the "newc" cpio format, as the kernel unpacks them.
//!
//! Format: `Documentation/driver-api/early-userspace/buffer-format.rst` of the kernel. Owner and times are
//! zero, so equal content gives equal bytes.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

/// Writes one archive.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    inode: u32,
}

impl<W: Write> Writer<W> {
    /// An archive with nothing in it yet.
    pub fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    /// Adds a directory; its parent must have been added before. Paths have no leading slash.
    ///
    /// # Errors
    /// If the output fails.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY | 0o755, &[])
    }

    /// Adds a file with the given permission bits.
    ///
    /// # Errors
    /// If the output fails, or the file is larger than the format allows (4 GiB).
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, REGULAR | (mode & 0o7777), content)
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// If the output fails.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, SYMLINK | 0o777, target.as_bytes())
    }

    /// Ends the archive and returns the output.
    ///
    /// # Errors
    /// If the output fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.record("TRAILER!!!", 0, 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        self.record(path, self.inode, mode, content)
    }

    fn record(&mut self, path: &str, inode: u32, mode: u32, content: &[u8]) -> io::Result<()> {
        let too_large =
            |_| io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} is too large for cpio"));
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_large)?;
        // inode, mode, uid, gid, links, mtime, size, device major/minor, rdev major/minor, name size, check
        let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header += &format!("{field:08x}");
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(path.as_bytes())?;
        self.out.write_all(b"\0")?;
        self.pad(header.len() + path.len() + 1)?;
        self.out.write_all(content)?;
        self.pad(content.len())
    }

    /// Header with name, and content, each end on a multiple of four.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut writer = Writer::new(Vec::new());
        writer.file("a", 0o755, b"hello").unwrap();
        let bytes = writer.finish().unwrap();
        let zero = "00000000";
        let expected = format!(
            "070701{}{}{zero}{zero}{}{zero}{}{zero}{zero}{zero}{zero}{}{zero}a\0hello\0\0\0\
             070701{zero}{zero}{zero}{zero}{}{zero}{zero}{zero}{zero}{zero}{zero}{}{zero}TRAILER!!!\0\0\0\0",
            "00000001", "000081ed", "00000001", "00000005", "00000002", "00000001", "0000000b"
        );
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    /// What a reader that follows the format sees: (path, mode, content) of every entry.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let total = bytes.len();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |i: usize| {
                let text = std::str::from_utf8(&bytes[6 + 8 * i..14 + 8 * i]).unwrap();
                u32::from_str_radix(text, 16).unwrap() as usize
            };
            let (mode, size, name_size) = (field(1), field(6), field(11));
            let name = std::str::from_utf8(&bytes[110..110 + name_size - 1]).unwrap().to_owned();
            assert_eq!(bytes[110 + name_size - 1], 0);
            let start = (110 + name_size).next_multiple_of(4);
            let content = bytes[start..start + size].to_vec();
            bytes = &bytes[(start + size).next_multiple_of(4)..];
            assert_eq!((total - bytes.len()) % 4, 0);
            if name == "TRAILER!!!" {
                assert!(bytes.is_empty());
                return entries;
            }
            entries.push((name, mode as u32, content));
        }
    }

    proptest! {
        #[test]
        fn a_reader_gets_back_what_was_written(
            files in prop::collection::vec(("[a-z]{1,9}(/[a-z.0-9]{1,9}){0,2}", prop::collection::vec(any::<u8>(), 0..70)), 0..6)
        ) {
            let mut writer = Writer::new(Vec::new());
            for (path, content) in &files {
                writer.file(path, 0o644, content).unwrap();
            }
            writer.symlink("link", "to/there").unwrap();
            writer.directory("dir").unwrap();
            let mut expected: Vec<_> =
                files.into_iter().map(|(path, content)| (path, REGULAR | 0o644, content)).collect();
            expected.push((String::from("link"), SYMLINK | 0o777, b"to/there".to_vec()));
            expected.push((String::from("dir"), DIRECTORY | 0o755, Vec::new()));
            prop_assert_eq!(read(&writer.finish().unwrap()), expected);
        }
    }
}
