//! `cargo xtask docs`: the pages of `docs/` as a site, once no link in them is broken.

mod links;
mod site;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::{links::Pages, site::stage};
use crate::{command::run_as_step, tools, workspace};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only look for broken links: without the site, and so without mdBook
    #[arg(long)]
    check: bool,
}

/// Checks the links, and builds the site into `target/site`.
pub(crate) fn run_docs(args: &Args) -> Result<()> {
    let pages = checked()?;
    if args.check {
        return Ok(());
    }
    let mdbook = tools::mdbook()?;
    let source = workspace::target().join("site-source");
    let site = workspace::target().join("site");
    stage(&pages, &source)?;
    let mut command = std::process::Command::new(mdbook);
    command
        .arg("build")
        .arg(&source)
        .arg("--dest-dir")
        .arg(&site);
    run_as_step("the site", &mut command)?;
    println!("{}", site.join("index.html").display());
    Ok(())
}

/// Fails if a page of the checkout has a broken link, or the site lacks a page.
pub(crate) fn check() -> Result<()> {
    checked().map(drop)
}

fn checked() -> Result<Pages> {
    let pages = Pages::read(&workspace::root())?;
    let faults = pages.faults();
    if !faults.is_empty() {
        bail!("broken links: {}\n{}", faults.len(), faults.join("\n"));
    }
    Ok(pages)
}

/// Reads a file of the checkout.
fn read(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
