//! What the operating system grants this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files as far as this process may: each connection is one, and the usual default of 1024 is
/// for programs that still call `select`.
pub(crate) fn raise_open_files() {
    match try_raise() {
        Ok((before, now)) if before == now => {
            tracing::debug!(open_files = now, "limit of open files");
        }
        Ok((before, now)) => {
            tracing::info!(before, open_files = now, "raised the limit of open files");
        }
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files: many members may need more than there are");
        }
    }
}

/// The soft limit before and after.
fn try_raise() -> nix::Result<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok((soft, hard))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_hard_one_afterwards() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("known");
        // lower it first, so that there is something to raise
        let low = soft.min(hard).saturating_sub(1).max(512).min(hard);
        setrlimit(Resource::RLIMIT_NOFILE, low, hard).expect("lowered");
        raise_open_files();
        let (soft, after) = getrlimit(Resource::RLIMIT_NOFILE).expect("known");
        assert_eq!((soft, after), (hard, hard));
    }
}
