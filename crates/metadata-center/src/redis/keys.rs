//! How keys are named. The part in braces puts all keys of a cluster into one slot.

use std::fmt::Write;

use metadata::{Cluster, RequestId};

/// Clusters by last use.
pub(super) const CLUSTERS: &str = "mc1:clusters";
/// Names one life of what Redis holds.
pub(super) const BOOT: &str = "mc1:boot";

/// How all keys of a cluster begin.
pub(super) fn prefix(cluster: &Cluster) -> String {
    let mut prefix = String::from("mc1:{");
    for char in cluster.as_str().chars() {
        if matches!(char, '{' | '}' | '%' | ':') {
            // Writing to a string cannot fail.
            let _ = write!(prefix, "%{:02X}", u32::from(char));
        } else {
            prefix.push(char);
        }
    }
    prefix.push_str("}:");
    prefix
}

/// In which cluster the owner-less charge is.
pub(super) fn id(id: &RequestId) -> String {
    format!("mc1:id:{id}")
}

/// That the owner-less charge was deleted before it was added.
pub(super) fn gone(id: &RequestId) -> String {
    format!("mc1:gone:{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cluster_names_the_keys_of_another() {
        let prefix = |name: &str| prefix(&name.parse().unwrap());
        assert_eq!(prefix("ns/pool é"), "mc1:{ns/pool é}:");
        assert_eq!(prefix("a}:r:{%"), "mc1:{a%7D%3Ar%3A%7B%25}:");
    }
}
