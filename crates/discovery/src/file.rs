//! Members from a file, without Kubernetes.

mod entries;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use scheduling::Member;
use tokio::{task::spawn_blocking, time::sleep};

use crate::update::{Discovery, Kind, Outbox, Steps, Update, Updates, updates};

use entries::Entries;

/// Largest file that is read, in bytes: 1 MiB, some thousands of endpoints.
pub const MAX_FILE: usize = 1024 * 1024;

/// Between two looks at the file.
const POLL: Duration = Duration::from_secs(1);

/// Follows a file of endpoints, or reads it once.
///
/// The file is compared by content, so it does not matter how it is replaced; a rename, or the symlinks of a ConfigMap,
/// never shows half of it. A file that cannot be read or used changes nothing.
#[derive(Debug)]
pub struct FileDiscovery {
    path: PathBuf,
    watch: bool,
    content: Vec<u8>,
    entries: Entries,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// A directory, a pipe or the like.
    #[error("it is no file")]
    NotAFile,
    /// Beyond [`MAX_FILE`].
    #[error("it is larger than 1 MiB")]
    TooLarge,
    /// Neither YAML nor JSON, or of another shape.
    #[error("it is no list of endpoints: {0}")]
    Malformed(String),
    /// It has entries, and not one that can be used.
    #[error("none of its {entries} endpoints can be used; {first}")]
    NoUsableEntry {
        /// How many there are.
        entries: usize,
        /// What is wrong with the first.
        first: String,
    },
}

struct Follower {
    path: PathBuf,
    watch: bool,
    /// Read at the start, not published yet.
    first: Option<Entries>,
    /// The last look at the file: its content, or why there was none.
    seen: Result<Vec<u8>, String>,
    published: Option<Vec<Member>>,
}

// === impl FileDiscovery ===

impl FileDiscovery {
    /// Reads the file. With `watch` it is read again each second.
    ///
    /// # Errors
    /// [`FileError`] when it cannot be used now; later ones change nothing.
    pub fn new(path: impl Into<PathBuf>, watch: bool) -> Result<Self, FileError> {
        let path = path.into();
        let content = read(&path)?;
        let entries = Entries::parse(&content)?;
        Ok(Self {
            path,
            watch,
            content,
            entries,
        })
    }
}

impl Discovery for FileDiscovery {
    fn updates(self: Box<Self>) -> Updates {
        let Self {
            path,
            watch,
            content,
            entries,
        } = *self;
        updates(Follower {
            path,
            watch,
            first: Some(entries),
            seen: Ok(content),
            published: None,
        })
    }
}

// === impl FileError ===

impl FileError {
    /// Stable: metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "Unreadable",
            Self::NotAFile => "NotAFile",
            Self::TooLarge => "TooLarge",
            Self::Malformed(_) => "Malformed",
            Self::NoUsableEntry { .. } => "NoUsableEntry",
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}

// === impl Follower ===

impl Steps for Follower {
    async fn step(&mut self, out: &mut Outbox) {
        if let Some(entries) = self.first.take() {
            return self.publish(entries, out);
        }
        if !self.watch {
            std::future::pending::<()>().await;
        }
        sleep(POLL).await;
        let path = self.path.clone();
        let read = spawn_blocking(move || read(&path)).await;
        let read = read.unwrap_or_else(|error| Err(io::Error::other(error).into()));
        self.on_read(read, out);
    }
}

impl Follower {
    fn on_read(&mut self, read: Result<Vec<u8>, FileError>, out: &mut Outbox) {
        let seen = match &read {
            Ok(content) => Ok(content),
            Err(error) => Err(error.to_string()),
        };
        if self.seen.as_ref() == seen.as_ref().map(|content| *content) {
            return;
        }
        match read {
            Ok(content) => {
                match Entries::parse(&content) {
                    Ok(entries) => self.publish(entries, out),
                    Err(error) => out.push_back(self.failed(&error)),
                }
                self.seen = Ok(content);
            }
            Err(error) => {
                out.push_back(self.failed(&error));
                self.seen = Err(error.to_string());
            }
        }
    }

    fn publish(&mut self, entries: Entries, out: &mut Outbox) {
        let Entries {
            members,
            odd,
            more_odd,
        } = entries;
        let mk_odd = |name: String, error: String| Update::Odd {
            kind: Kind::File,
            name,
            error,
        };
        let odd = odd.into_iter();
        out.extend(odd.map(|odd| mk_odd(odd.name, format!("skipped: {}", odd.error))));
        if more_odd > 0 {
            let text = format!("{more_odd} more entries are skipped");
            out.push_back(mk_odd("endpoints".to_owned(), text));
        }
        out.push_back(Update::Listed(Kind::File));
        if self.published.as_ref() != Some(&members) {
            self.published = Some(members.clone());
            out.push_back(Update::Members(members));
        }
    }

    fn failed(&self, error: &FileError) -> Update {
        Update::Failed {
            kind: Kind::File,
            reason: error.reason(),
            error: format!("{}: {error}", self.path.display()),
        }
    }
}

/// Blocks.
fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    // opening a pipe would wait for a writer
    if !std::fs::metadata(path)?.is_file() {
        return Err(FileError::NotAFile);
    }
    let mut content = Vec::new();
    let limit = u64::try_from(MAX_FILE).unwrap_or(u64::MAX);
    File::open(path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut content)?;
    if content.len() > MAX_FILE {
        return Err(FileError::TooLarge);
    }
    Ok(content)
}

#[cfg(test)]
mod tests;
