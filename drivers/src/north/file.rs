//! Delivery to a file, one line a record.
//!
//! A record counts as delivered once `fdatasync` returned; a new file's name is made durable with
//! its folder. No line stays half: what a crash or a full disk left of one is cut off before the
//! next record is written. A record can stand twice, with the same id, where its delivery was
//! interrupted after it was written. Knows nothing of the records' content. Two sinks must not share a path: each would take the other's lines for its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::types::Bytes;

#[cfg(feature = "io")]
pub use io::FileNorth;

/// A file that results are appended to.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSink {
    /// The file's path; its folder must exist.
    pub path: String,
    /// A new file is begun before the current one would grow beyond this.
    #[serde(default = "default_rotate")]
    pub rotate: Bytes,
    /// Older files that are kept, as `path.1` (the newest) to `path.N`.
    #[serde(default = "default_keep")]
    pub keep: u32,
    /// How records are written.
    #[serde(default)]
    pub encode: super::Encode,
}

fn default_rotate() -> Bytes {
    Bytes::from_mib(16)
}

fn default_keep() -> u32 {
    5
}

#[cfg(feature = "io")]
mod io {
    use std::ffi::OsString;
    use std::fs::{self, File, OpenOptions};
    use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, Mutex, PoisonError};

    use futures::future::BoxFuture;

    use super::FileSink;
    use crate::border::{Delivered, Fault, North, Payload};
    use crate::north::lines::{blocking, lines};
    use crate::stats::{Counter, LinkState, Stats};

    /// Appends each record as a line to a file that is rotated.
    #[derive(Debug)]
    pub struct FileNorth {
        /// Locked for the whole of each piece of work, so that one whose future was dropped is
        /// finished before the next begins.
        log: Arc<Mutex<LineLog>>,
        path: PathBuf,
        stats: Arc<Stats>,
    }

    impl FileNorth {
        /// Makes the sink; nothing is opened before `connect`.
        pub fn new(config: FileSink) -> Self {
            let path = PathBuf::from(config.path);
            let (rotate, keep) = (config.rotate.get(), config.keep);
            let log = LineLog { path: path.clone(), rotate, keep, open: None };
            Self { log: Arc::new(Mutex::new(log)), path, stats: Arc::default() }
        }

        /// Works on the file without blocking the runtime. Once begun, it is finished.
        async fn work<T: Send + 'static>(
            &self,
            work: impl FnOnce(&mut LineLog) -> io::Result<T> + Send + 'static,
        ) -> io::Result<T> {
            let log = Arc::clone(&self.log);
            blocking(move || work(&mut log.lock().unwrap_or_else(PoisonError::into_inner))).await
        }

        fn failed(&self, error: &io::Error) -> Fault {
            let fault = fault(&self.path, error);
            self.stats.add(Counter::LinkFaults, 1);
            self.stats.set_state(LinkState::Down);
            self.stats.set_error(Some(fault.to_string()));
            fault
        }
    }

    /// What an error means: a full or failing disk may recover, a wrong path will not.
    fn fault(path: &Path, error: &io::Error) -> Fault {
        let shown = path.display();
        match error.kind() {
            ErrorKind::NotFound => {
                let folder = folder(path);
                // It may appear: a stick, a share that is mounted later.
                Fault::Link(format!("{shown}: the folder {} must exist", folder.display()))
            }
            ErrorKind::PermissionDenied => {
                Fault::Config(format!("{shown}: {error}; the service's user must be able to write"))
            }
            ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
                Fault::Config(format!("{shown}: {error}"))
            }
            _ => Fault::Link(format!("{shown}: {error}")),
        }
    }

    impl North for FileNorth {
        fn stats(&self) -> Arc<Stats> {
            Arc::clone(&self.stats)
        }

        fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
            Box::pin(async move {
                self.work(LineLog::reopen).await.map_err(|error| self.failed(&error))?;
                self.stats.add(Counter::Connects, 1);
                self.stats.set_state(LinkState::Up);
                self.stats.set_error(None);
                Ok(())
            })
        }

        fn deliver<'a>(&'a mut self, payloads: &'a [Payload]) -> BoxFuture<'a, Delivered> {
            Box::pin(async move {
                let (bytes, count, refused) = lines(payloads);
                let appended = self.work(move |log| Ok(log.append(&bytes))).await;
                let (durable, error) =
                    appended.unwrap_or_else(|error| (Durable::default(), Some(error)));
                self.stats.add(Counter::Requests, durable.lines as u64);
                self.stats.add(Counter::BytesOut, durable.bytes as u64);
                let failed = error.map(|error| self.failed(&error));
                assert!(failed.is_some() || durable.lines == count, "all lines are durable");
                Delivered { count: durable.lines, fault: failed.or(refused) }
            })
        }
    }

    /// How much of an append is durable, whatever came after.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    struct Durable {
        lines: usize,
        bytes: usize,
    }

    /// A file of whole lines, with its older files.
    #[derive(Debug)]
    struct LineLog {
        path: PathBuf,
        /// Bytes that the file may hold, unless a single line is longer.
        rotate: u64,
        keep: u32,
        open: Option<Open>,
    }

    #[derive(Debug)]
    struct Open {
        file: File,
        /// Bytes that are durable: the file's length between two calls.
        len: u64,
    }

    impl LineLog {
        /// Opens or creates the file and cuts off a torn last line.
        fn reopen(&mut self) -> io::Result<()> {
            self.open = None;
            let mut file =
                OpenOptions::new().read(true).append(true).create(true).open(&self.path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::Error::new(ErrorKind::InvalidFilename, "not a regular file"));
            }
            let found = metadata.len();
            let len = whole_lines(&mut file, found)?;
            if len < found {
                tracing::warn!(path = %self.path.display(), bytes = found - len, "cut a torn line");
                file.set_len(len)?;
            }
            file.sync_all()?;
            sync_folder(&self.path)?;
            self.open = Some(Open { file, len });
            Ok(())
        }

        /// Appends whole lines. Returns how much is durable, and what stopped the rest. After an
        /// error the file is closed: only a new `reopen` knows what it holds.
        fn append(&mut self, lines: &[u8]) -> (Durable, Option<io::Error>) {
            let mut durable = Durable::default();
            while durable.bytes < lines.len() {
                let rest = &lines[durable.bytes..];
                match self.append_part(rest) {
                    Ok(len) => {
                        durable.lines += rest[..len].split_inclusive(|byte| *byte == b'\n').count();
                        durable.bytes += len;
                    }
                    Err(error) => {
                        self.close();
                        return (durable, Some(error));
                    }
                }
            }
            (durable, None)
        }

        /// Makes the lines durable that fit into the current file, at least one, and returns their
        /// bytes.
        fn append_part(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.follow()?;
            let first = line_len(lines);
            let len = self.open.as_ref().map_or(0, |open| open.len);
            if len > 0 && len + first as u64 > self.rotate {
                self.rotate()?;
            }
            let open = self.open.as_mut().ok_or(ErrorKind::NotConnected)?;
            let room = usize::try_from(self.rotate.saturating_sub(open.len)).unwrap_or(usize::MAX);
            let part = if lines.len() <= room {
                lines
            } else {
                let fitting = lines[..room].iter().rposition(|byte| *byte == b'\n');
                &lines[..fitting.map_or(first, |end| end + 1)]
            };
            open.file.write_all(part)?;
            open.file.sync_data()?;
            open.len += part.len() as u64;
            Ok(part.len())
        }

        /// Opens the file anew where the path names another one now: it was moved or deleted, and
        /// records must not go where nobody looks.
        fn follow(&mut self) -> io::Result<()> {
            let Some(open) = &self.open else {
                return Err(ErrorKind::NotConnected.into());
            };
            let mine = open.file.metadata()?;
            match fs::metadata(&self.path) {
                Ok(named) if (named.dev(), named.ino()) == (mine.dev(), mine.ino()) => Ok(()),
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => self.reopen(),
            }
        }

        /// Moves `path` to `path.1`, `path.1` to `path.2` and so on, and begins a new file. A crash
        /// in between leaves a number free, and nothing lost.
        fn rotate(&mut self) -> io::Result<()> {
            self.open = None;
            for number in (0..self.keep).rev() {
                let from = if number == 0 { self.path.clone() } else { self.numbered(number) };
                match fs::rename(from, self.numbered(number + 1)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            if self.keep == 0 {
                fs::remove_file(&self.path)?;
            }
            self.reopen()
        }

        fn numbered(&self, number: u32) -> PathBuf {
            let mut name = OsString::from(&self.path);
            name.push(format!(".{number}"));
            PathBuf::from(name)
        }

        /// Takes back what was not made durable and closes the file.
        fn close(&mut self) {
            if let Some(Open { file, len }) = self.open.take()
                && let Err(error) = file.set_len(len)
            {
                tracing::warn!(path = %self.path.display(), %error, "cannot cut a torn line yet");
            }
        }
    }

    /// The length of the first line with its end.
    fn line_len(lines: &[u8]) -> usize {
        lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |end| end + 1)
    }

    /// The length up to the last line end, looking backwards from `len`.
    fn whole_lines(file: &mut File, len: u64) -> io::Result<u64> {
        let mut end = len;
        let mut block = [0; 4096];
        while end > 0 {
            let start = end.saturating_sub(block.len() as u64);
            let part = &mut block[..usize::try_from(end - start).unwrap_or(0)];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(part)?;
            if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
                return Ok(start + at as u64 + 1);
            }
            end = start;
        }
        Ok(0)
    }

    fn folder(path: &Path) -> &Path {
        match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    fn sync_folder(path: &Path) -> io::Result<()> {
        File::open(folder(path))?.sync_all()
    }

    #[cfg(test)]
    mod tests {
        use tempfile::TempDir;

        use super::*;
        use crate::north::lines::payload;
        use crate::types::Bytes;

        fn sink(folder: &TempDir, rotate: u64, keep: u32) -> (FileNorth, PathBuf) {
            let path = folder.path().join("out.jsonl");
            let shown = path.to_str().unwrap().to_owned();
            let rotate = Bytes::new(rotate);
            let encode = crate::north::Encode::default();
            (FileNorth::new(FileSink { path: shown, rotate, keep, encode }), path)
        }

        fn folder_of_its_own() -> TempDir {
            tempfile::tempdir().unwrap()
        }

        fn text(path: &Path, suffix: &str) -> Option<String> {
            fs::read_to_string(format!("{}{suffix}", path.display())).ok()
        }

        async fn deliver(north: &mut FileNorth, bodies: &[&str]) -> Delivered {
            let payloads: Vec<_> = bodies.iter().map(|body| payload(body)).collect();
            north.deliver(&payloads).await
        }

        #[tokio::test]
        async fn lines_are_appended_to_what_stands_there() {
            let folder = folder_of_its_own();
            let (mut north, path) = sink(&folder, 1000, 2);
            north.connect().await.unwrap();
            assert_eq!(
                deliver(&mut north, &["a", "bc"]).await,
                Delivered { count: 2, fault: None }
            );
            let (mut again, _) = sink(&folder, 1000, 2);
            again.connect().await.unwrap();
            assert_eq!(deliver(&mut again, &["d"]).await.count, 1);
            assert_eq!(text(&path, "").unwrap(), "a\nbc\nd\n");
            assert_eq!(north.stats().get(Counter::BytesOut), 5);
        }

        #[tokio::test]
        async fn a_torn_last_line_is_cut_off() {
            let long = "x".repeat(10_000);
            let cases = [
                ("a\nb", "a\n".to_owned()),
                ("torn from the start", String::new()),
                ("", String::new()),
                (&format!("{long}\n{long}"), format!("{long}\n")),
            ];
            for (found, kept) in cases {
                let folder = folder_of_its_own();
                let (mut north, path) = sink(&folder, 1 << 20, 2);
                File::create(&path).unwrap().write_all(found.as_bytes()).unwrap();
                north.connect().await.unwrap();
                assert_eq!(text(&path, "").unwrap(), kept);
                deliver(&mut north, &["next"]).await;
                assert_eq!(text(&path, "").unwrap(), format!("{kept}next\n"));
            }
        }

        #[tokio::test]
        async fn files_are_rotated_at_their_size_and_the_oldest_goes() {
            let folder = folder_of_its_own();
            let (mut north, path) = sink(&folder, 8, 2);
            north.connect().await.unwrap();
            let bodies = ["a01", "a02", "b01", "longer than a file", "c01", "c02", "d01"];
            assert_eq!(deliver(&mut north, &bodies).await, Delivered { count: 7, fault: None });
            assert_eq!(text(&path, "").unwrap(), "d01\n");
            assert_eq!(text(&path, ".1").unwrap(), "c01\nc02\n");
            assert_eq!(text(&path, ".2").unwrap(), "longer than a file\n");
            assert_eq!(text(&path, ".3"), None);

            let folder = folder_of_its_own();
            let (mut none, path) = sink(&folder, 8, 0);
            none.connect().await.unwrap();
            deliver(&mut none, &["a01", "a02", "b01"]).await;
            assert_eq!(text(&path, "").unwrap(), "b01\n");
            assert_eq!(text(&path, ".1"), None);
        }

        #[tokio::test]
        async fn a_file_that_was_moved_or_deleted_is_begun_anew() {
            let folder = folder_of_its_own();
            let (mut north, path) = sink(&folder, 1000, 2);
            north.connect().await.unwrap();
            deliver(&mut north, &["a"]).await;
            fs::rename(&path, folder.path().join("moved")).unwrap();
            assert_eq!(deliver(&mut north, &["b"]).await.count, 1);
            assert_eq!(text(&path, "").unwrap(), "b\n");
            fs::remove_file(&path).unwrap();
            assert_eq!(deliver(&mut north, &["c"]).await.count, 1);
            assert_eq!(text(&path, "").unwrap(), "c\n");
        }

        #[tokio::test]
        async fn a_wrong_path_is_a_fault_of_the_configuration() {
            let folder = folder_of_its_own();
            let (mut north, path) = sink(&folder, 1000, 2);
            fs::create_dir(&path).unwrap();
            let Err(Fault::Config(_)) = north.connect().await else { panic!("a folder") };
            let gone = folder.path().join("gone");
            drop(folder);
            let fault = fault(&gone.join("out"), &ErrorKind::NotFound.into());
            assert_eq!(
                fault.to_string(),
                format!("{0}/out: the folder {0} must exist", gone.display())
            );
            let Err(Fault::Link(_)) = north.connect().await else { panic!("no folder") };
        }

        #[test]
        fn a_full_disk_is_tried_again_and_a_forbidden_one_is_not() {
            let at = |kind: ErrorKind| fault(Path::new("out"), &kind.into());
            assert!(matches!(at(ErrorKind::StorageFull), Fault::Link(_)));
            assert!(matches!(at(ErrorKind::QuotaExceeded), Fault::Link(_)));
            assert!(matches!(at(ErrorKind::PermissionDenied), Fault::Config(_)));
        }

        #[tokio::test]
        async fn nothing_is_written_before_the_file_was_opened() {
            let folder = folder_of_its_own();
            let (mut north, path) = sink(&folder, 1000, 2);
            let delivered = deliver(&mut north, &["a"]).await;
            assert!(matches!(delivered, Delivered { count: 0, fault: Some(Fault::Link(_)) }));
            north.connect().await.unwrap();
            let delivered = deliver(&mut north, &["a", "b\nb", "c"]).await;
            assert!(matches!(delivered, Delivered { count: 1, fault: Some(Fault::Refused(_)) }));
            assert_eq!(text(&path, "").unwrap(), "a\n");
        }
    }
}
