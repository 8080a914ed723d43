//! What an endpoint runs, as its labels say.

/// Labels that name the engine. The second is the former name.
pub(crate) const ENGINE: [&str; 2] = [
    "llm-d.ai/engine-type",
    "inference.networking.k8s.io/engine-type",
];

/// The engine by these labels; empty when they do not say.
pub(crate) fn engine<'a>(label: impl Fn(&str) -> Option<&'a str>) -> &'a str {
    ENGINE.iter().find_map(|key| label(key)).unwrap_or_default()
}
