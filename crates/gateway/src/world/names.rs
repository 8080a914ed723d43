//! Names of the objects that run a Gateway, and values of their labels.

use super::{Gateway, Key};

/// A label's longest value, and a Service's longest name.
const LABEL_LIMIT: usize = 63;

/// `<gateway>-<class>`. Where that would not be a Service's name, or where another Gateway and class
/// could give the same, a hash of both makes it distinct.
pub(crate) fn part_key(gateway: &Gateway) -> Key {
    let (name, class) = (&gateway.key.name, &gateway.class);
    let plain = format!("{name}-{class}");
    // Without a hyphen in the class, the last one parts the two.
    let plain_enough = plain.len() <= LABEL_LIMIT
        && plain.starts_with(|c: char| c.is_ascii_lowercase())
        && !plain.contains('.')
        && !class.contains('-');
    let text = if plain_enough {
        plain
    } else {
        let prefix = if name.starts_with(|c: char| c.is_ascii_lowercase()) {
            ""
        } else {
            "gw-" // a Service's name begins with a letter
        };
        let readable = format!("{prefix}{}", plain.replace('.', "-"));
        // A slash is in neither name.
        with_hash(&readable, &format!("{name}/{class}"))
    };
    Key::new(&gateway.key.namespace, text)
}

/// A label's value of at most 63 characters; longer texts keep their start and stay distinct by
/// their hash.
pub(crate) fn fit(text: &str) -> String {
    if text.len() <= LABEL_LIMIT {
        return text.to_owned();
    }
    with_hash(text, text)
}

fn with_hash(readable: &str, whole: &str) -> String {
    let start: String = readable.chars().take(LABEL_LIMIT - 9).collect();
    let hash = xxhash_rust::xxh3::xxh3_64(whole.as_bytes()) >> 32;
    format!("{}-{hash:08x}", start.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::mk_gateway;

    #[test]
    fn long_names_are_cut_and_stay_distinct() {
        let (a, b) = ("x".repeat(63) + "a", "x".repeat(63) + "b");
        assert_eq!(fit(&a).len(), 63);
        assert_ne!(fit(&a), fit(&b));
        assert_eq!(fit("short"), "short");
    }

    #[test]
    fn each_gateway_and_class_has_a_name_of_its_own() {
        let name = |name: &str, class: &str| {
            let mut gateway = mk_gateway(name, Vec::new());
            gateway.class = class.into();
            part_key(&gateway).name
        };
        assert_eq!(name("inference", "isthmus"), "inference-isthmus");
        assert_eq!(name("a-b", "c"), "a-b-c");
        assert_ne!(name("a", "b-c"), name("a-b", "c"));
        assert_ne!(name("a.b", "c"), name("a-b", "c"));
        assert_ne!(name("a.b", "c"), name("a", "b.c"));
        let long = "x".repeat(63);
        assert_ne!(name(&long, "a"), name(&long, "b"));
        for name in [name("1", "c"), name(&long, "c"), name("a.b", "c")] {
            assert!(name.len() <= 63 && !name.contains('.'), "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
        }
    }
}
