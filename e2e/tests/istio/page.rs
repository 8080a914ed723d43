//! The manifests and values of `docs/istio.md`.

use anyhow::{Context, Result, ensure};

const PAGE: &str = include_str!("../../../docs/istio.md");

/// The one block of the page whose first line is a comment with this name.
///
/// # Errors
/// When there is none, or are several.
pub(crate) fn block(name: &str) -> Result<&'static str> {
    let begin = format!("# {name}\n");
    let blocks = PAGE.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| block.split("```").next());
    let mut found = blocks.by_ref().filter(|block| block.starts_with(&begin));
    let block = found
        .next()
        .with_context(|| format!("no block {name} in docs/istio.md"))?;
    ensure!(
        found.next().is_none(),
        "several blocks {name} in docs/istio.md"
    );
    Ok(block)
}
