//! Serves the monitor's records to any number of readers over a Unix socket.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Why the socket cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// Somebody else serves there.
    #[error("cannot serve on {0}: another process already serves there; stop it or choose another path")]
    Taken(PathBuf),
    /// Something else lies there.
    #[error("cannot serve on {0}: there is a file of that name that is no socket; choose another path")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot serve on {path}")]
    Bind {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A socket that hands every line to all readers. Readers that do not keep up are dropped; the monitor never
/// waits for anybody. The socket's file is removed when this is dropped.
#[derive(Debug)]
pub struct Feed {
    listener: UnixListener,
    readers: Vec<UnixStream>,
    path: PathBuf,
}

impl Feed {
    /// Listens on `path`. A socket file that a killed process left there is replaced.
    ///
    /// # Errors
    /// [`FeedError`].
    pub fn bind(path: &Path) -> Result<Self, FeedError> {
        let failed = |source| FeedError::Bind { path: path.into(), source };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(FeedError::NotASocket(path.into())),
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                Ok(_) => return Err(FeedError::Taken(path.into())),
                Err(error) => return Err(failed(error)),
            },
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let feed = Self { listener, readers: Vec::new(), path: path.into() };
        feed.listener.set_nonblocking(true).map_err(failed)?;
        Ok(feed)
    }

    /// Sends one line (a line break is added) to everybody who is connected now.
    pub fn publish(&mut self, line: &str) {
        while let Ok((reader, _)) = self.listener.accept() {
            if reader.set_nonblocking(true).is_ok() {
                self.readers.push(reader);
            }
        }
        let message = format!("{line}\n");
        // A partial write would garble the reader's next line, so it ends the connection too.
        self.readers
            .retain_mut(|reader| matches!(reader.write(message.as_bytes()), Ok(n) if n == message.len()));
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn readers_get_lines_and_the_file_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("feed");
        let mut feed = Feed::bind(&path).unwrap();
        let mut readers: Vec<_> =
            (0..3).map(|_| BufReader::new(UnixStream::connect(&path).unwrap())).collect();
        feed.publish("{\"a\":1}");
        drop(readers.pop());
        feed.publish("{\"a\":2}");
        for reader in readers {
            let lines: Vec<String> = reader.lines().take(2).map(Result::unwrap).collect();
            assert_eq!(lines, ["{\"a\":1}", "{\"a\":2}"]);
        }
        drop(feed);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_respected_a_stale_one_replaced_and_a_file_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("feed");
        let feed = Feed::bind(&path).unwrap();
        assert!(matches!(Feed::bind(&path), Err(FeedError::Taken(_))));
        drop(feed);
        drop(UnixListener::bind(&path).unwrap()); // leaves its file behind
        assert!(Feed::bind(&path).is_ok());
        fs::write(&path, "mine").unwrap();
        assert!(matches!(Feed::bind(&path), Err(FeedError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn a_reader_that_does_not_read_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("feed");
        let mut feed = Feed::bind(&path).unwrap();
        let _lazy = UnixStream::connect(&path).unwrap();
        let line = "x".repeat(10_000);
        for _ in 0..200 {
            feed.publish(&line);
        }
        assert!(feed.readers.is_empty());
    }
}
