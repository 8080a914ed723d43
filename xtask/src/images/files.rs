//! What stands in an image: files by their paths, as a layer that depends on nothing else. Pure but for reading the files.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result};
use tar::{EntryType, Header};

/// Files in the order of their paths.
#[derive(Default)]
pub(super) struct Files(BTreeMap<String, File>);

struct File {
    mode: u32,
    bytes: Vec<u8>,
}

/// Archive of entries without times, owners and what else differs between machines.
pub(super) struct Tar(tar::Builder<Vec<u8>>);

// === impl Files ===

impl Files {
    /// Adds a file at an absolute path.
    pub(super) fn add(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.0.insert(path.to_owned(), File { mode, bytes });
    }

    /// Adds a copy of a file of this machine.
    pub(super) fn add_file(&mut self, path: &str, mode: u32, from: &Path) -> Result<()> {
        let bytes = super::read(from)?;
        self.add(path, mode, bytes);
        Ok(())
    }

    /// Bytes of all files.
    pub(super) fn size(&self) -> u64 {
        self.0.values().map(|file| file.bytes.len() as u64).sum()
    }

    /// The layer: each directory before what is in it.
    pub(super) fn layer(&self) -> Result<Vec<u8>> {
        let mut tar = Tar::default();
        let mut made = std::collections::BTreeSet::new();
        for (path, file) in &self.0 {
            let path = path.trim_start_matches('/');
            for (end, _) in path.match_indices('/') {
                let directory = path.get(..=end).unwrap_or_default();
                if made.insert(directory) {
                    tar.directory(directory)?;
                }
            }
            tar.file(path, file.mode, &file.bytes)?;
        }
        tar.finish()
    }
}

// === impl Tar ===

impl Default for Tar {
    fn default() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }
}

impl Tar {
    pub(super) fn directory(&mut self, path: &str) -> Result<()> {
        self.entry(path, EntryType::Directory, 0o755, &[])
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.entry(path, EntryType::Regular, mode, bytes)
    }

    pub(super) fn finish(self) -> Result<Vec<u8>> {
        self.0.into_inner().context("ending an archive")
    }

    fn entry(&mut self, path: &str, kind: EntryType, mode: u32, bytes: &[u8]) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        self.0
            .append_data(&mut header, path, bytes)
            .with_context(|| format!("writing {path} to an archive"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_list_directories_and_files_in_order_without_times_and_owners() {
        let mut files = Files::default();
        files.add("/etc/ssl/certs/ca.crt", 0o644, b"ca".to_vec());
        files.add("/etc/a", 0o644, Vec::new());
        files.add("/zeta", 0o755, b"program".to_vec());
        let layer = files.layer().unwrap();
        let mut archive = tar::Archive::new(&layer[..]);
        let entries: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                assert_eq!(header.mtime().unwrap(), 0);
                assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
                let path = entry.path().unwrap().display().to_string();
                let (mode, size) = (header.mode().unwrap(), header.size().unwrap());
                format!("{path} {mode:o} {size}")
            })
            .collect();
        assert_eq!(
            entries,
            [
                "etc/ 755 0",
                "etc/a 644 0",
                "etc/ssl/ 755 0",
                "etc/ssl/certs/ 755 0",
                "etc/ssl/certs/ca.crt 644 2",
                "zeta 755 7",
            ]
        );
        assert_eq!(files.size(), 9);
    }
}
