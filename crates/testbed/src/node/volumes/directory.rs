//! A directory whose files change all at once, in the way a kubelet's volumes do.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path};

/// The link that is swapped to change all files of a volume at once.
const DATA: &str = "..data";

/// Whether a file of that name would lie outside the volume, or among its own links.
pub(super) fn leaves(path: &str) -> bool {
    let plain = |component| matches!(component, Component::Normal(_));
    path.is_empty() || path.starts_with("..") || !Path::new(path).components().all(plain)
}

/// Writes the files into a new directory and swaps one link, so that a reader sees the old files or the new ones.
///
/// # Errors
/// When the directory cannot be written, or has had this generation already.
pub fn write_volume(
    directory: &Path,
    generation: u64,
    files: &BTreeMap<String, Vec<u8>>,
) -> io::Result<()> {
    let name = format!("..{generation}");
    let fresh = directory.join(&name);
    fs::create_dir_all(&fresh)?;
    for (path, content) in files {
        let path = fresh.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)?;
    }
    let data = directory.join(DATA);
    let old = fs::read_link(&data).ok();
    let swap = directory.join("..data_tmp");
    std::os::unix::fs::symlink(&name, &swap)?;
    fs::rename(&swap, &data)?;

    let mut wanted: Vec<&str> = files
        .keys()
        .filter_map(|path| path.split('/').next())
        .collect();
    wanted.dedup();
    for entry in fs::read_dir(directory)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !wanted.contains(&name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    for name in wanted {
        let link = directory.join(name);
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(Path::new(DATA).join(name), link)?;
        }
    }
    match old {
        Some(old) => fs::remove_dir_all(directory.join(old)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_files(files: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        let owned =
            |&(path, content): &(&str, &str)| (path.to_owned(), content.as_bytes().to_vec());
        files.iter().map(owned).collect()
    }

    #[test]
    fn a_change_replaces_removes_and_adds_files() {
        let directory = tempfile::tempdir().unwrap();
        write_volume(
            directory.path(),
            1,
            &mk_files(&[("a", "1"), ("gone", "x"), ("sub/b", "1")]),
        )
        .unwrap();
        write_volume(
            directory.path(),
            2,
            &mk_files(&[("a", "2"), ("new", "y"), ("sub/b", "2")]),
        )
        .unwrap();

        let read = |name: &str| fs::read_to_string(directory.path().join(name));
        assert_eq!(read("a").unwrap(), "2");
        assert_eq!(read("new").unwrap(), "y");
        assert_eq!(read("sub/b").unwrap(), "2");
        assert!(read("gone").is_err());
        assert!(!directory.path().join("..1").exists());
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        for path in ["../x", "/etc/x", "a/../../x", "", "..data"] {
            assert!(leaves(path), "{path:?}");
        }
        assert!(!leaves("a/b.yaml"));
    }
}
