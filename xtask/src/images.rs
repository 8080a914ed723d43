//! `cargo xtask images`: an OCI image archive of each program, without a container daemon.
//!
//! One layer on nothing: the program, which is linked statically, and CA certificates. What goes in is listed in order, without
//! times and owners, and built without paths of the machine, so that the same commit gives the same digest.

mod archive;
mod files;
mod libraries;
mod program;
mod sbom;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;

pub(crate) use self::{archive::platform, program::is_dirty};
use self::{
    archive::{Archive, Registry, Settings},
    files::Files,
    program::{Built, Checkout},
    sbom::Component,
    table::Row,
};
use crate::{demo::PROGRAMS, tools, workspace};

/// The one place of the version is the workspace's `Cargo.toml`.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Bytes of all files of an image of ours. The largest has 28 MB; what is above forty has got something in by mistake.
const LIMIT: u64 = 40_000_000;
/// Of Envoy: three times what it has.
const ENVOY_LIMIT: u64 = 300_000_000;

/// The one image of a program that is not ours.
const ENVOY: &str = "envoy";

/// Nobody's, and not 0: `runAsNonRoot` asks for a number.
const USER: &str = "65532:65532";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Of this program alone (repeatable)
    #[arg(long, value_name = "PROGRAM", value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Envoy's too, of the binary that the tests use: isthmus/envoy
    #[arg(long)]
    envoy: bool,
    /// Push each image as REGISTRY/PREFIX/PROGRAM:VERSION, with the credentials that docker login keeps
    #[arg(long, value_name = "REGISTRY/PREFIX")]
    push: Option<String>,
    #[command(flatten)]
    build: BuildArgs,
}

/// Where the programs come from.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BuildArgs {
    /// How the programs are built; images for others are of `release`
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Pack the finished programs of this folder instead of building them
    #[arg(long, value_name = "DIR", conflicts_with = "profile")]
    binaries: Option<PathBuf>,
    /// Where the source is, for the label of that name [default: no such label]
    #[arg(long, value_name = "URL")]
    source: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    Release,
    QuickRelease,
}

/// What an image is made of.
struct Plan {
    name: String,
    version: String,
    description: String,
    licences: String,
    /// Of what it is built from; none where that is not this checkout.
    revision: Option<String>,
    source: Option<String>,
    binary: PathBuf,
    limit: u64,
    components: Vec<Component>,
}

/// Makes the images in `target/images`, and pushes them where this is asked for.
pub(crate) fn make_images(args: &Args) -> Result<()> {
    let directory = workspace::target().join("images");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("creating {}", directory.display()))?;
    make(args, &directory)
}

/// Makes the images of all programs in this directory.
pub(crate) fn make_into(build: &BuildArgs, directory: &Path) -> Result<()> {
    let args = Args {
        only: Vec::new(),
        envoy: false,
        push: None,
        build: build.clone(),
    };
    make(&args, directory)
}

/// Names and files of the programs of images, and of these others, which have none.
pub(crate) fn binaries(build: &BuildArgs, others: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let checkout = Checkout::read(build.source.clone())?;
    let mut found = Vec::new();
    for programs in [&PROGRAMS[..], others] {
        if programs.is_empty() {
            continue;
        }
        let built = build.built(programs, programs, &checkout)?;
        let programs = programs.iter();
        found.extend(programs.map(|name| ((*name).to_owned(), built.path(name))));
    }
    Ok(found)
}

fn make(args: &Args, directory: &Path) -> Result<()> {
    let crane = tools::crane()?;
    let certificates = tools::certificates()?;
    let checkout = Checkout::read(args.build.source.clone())?;
    let plans = plans(args, &checkout)?;
    let registry = Registry::start(&crane)?;
    let mut rows = Vec::new();
    for plan in &plans {
        let mut files = Files::default();
        files.add_file(&format!("/{}", plan.name), 0o755, &plan.binary)?;
        let bundle = read(&certificates.bundle)?;
        files.add("/etc/ssl/certs/ca-certificates.crt", 0o644, bundle);
        let mut components = plan.components.clone();
        components.push(Component::certificates(&certificates.version));
        components.extend(libraries::add(&mut files, &plan.binary)?);
        let size = files.size();
        check_size(&plan.name, size, plan.limit)?;
        let settings = Settings {
            name: &plan.name,
            version: &plan.version,
            entry: format!("/{}", plan.name),
            user: USER,
            labels: labels(plan),
        };
        let archive = registry.assemble(&settings, &files, directory)?;
        let image = Component::image(&plan.name, &plan.version, &plan.licences);
        let document = sbom::document(&image, archive.digest(), &checkout.time, &components);
        let path = directory.join(format!("{}.spdx.json", plan.name));
        std::fs::write(&path, document).with_context(|| format!("writing {}", path.display()))?;
        rows.push(Row {
            image: format!("isthmus/{}:{}", plan.name, plan.version),
            size,
            archive_size: archive.size()?,
            digest: archive.digest().to_owned(),
        });
        if let Some(prefix) = &args.push {
            push(&archive, prefix, plan)?;
        }
    }
    print!("{}", table::render(&rows));
    Ok(())
}

fn push(archive: &Archive<'_>, prefix: &str, plan: &Plan) -> Result<()> {
    let prefix = prefix.trim_end_matches('/');
    archive.push(&format!("{prefix}/{}:{}", plan.name, plan.version))
}

fn plans(args: &Args, checkout: &Checkout) -> Result<Vec<Plan>> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|it| it == name);
    let programs: Vec<&str> = PROGRAMS.into_iter().filter(|it| wanted(it)).collect();
    let mut plans = Vec::new();
    if !programs.is_empty() {
        let built = args.build.built(&PROGRAMS, &programs, checkout)?;
        let graph = sbom::Graph::read(&program::target()?)?;
        for name in programs {
            let about = graph.about(name)?;
            plans.push(Plan {
                name: name.to_owned(),
                version: VERSION.to_owned(),
                description: about.description,
                licences: about.licences,
                revision: Some(checkout.revision.clone()),
                source: checkout.source.clone(),
                binary: built.path(name),
                limit: LIMIT,
                components: [graph.components(name)?, built.components()?].concat(),
            });
        }
    }
    if args.envoy || args.only.iter().any(|it| it == ENVOY) {
        plans.push(envoy()?);
    }
    Ok(plans)
}

fn envoy() -> Result<Plan> {
    let binary = tools::envoy()?;
    let version = program::envoy_version(&binary)?;
    Ok(Plan {
        name: ENVOY.to_owned(),
        description: "Envoy as its Python package has it, for trials".to_owned(),
        licences: "Apache-2.0".to_owned(),
        revision: None,
        source: None,
        components: vec![Component::envoy(&version)],
        binary,
        limit: ENVOY_LIMIT,
        version,
    })
}

fn names() -> Vec<&'static str> {
    [&PROGRAMS[..], &[ENVOY]].concat()
}

fn labels(plan: &Plan) -> Vec<(&'static str, String)> {
    let labels = [
        ("title", Some(&plan.name)),
        ("description", Some(&plan.description)),
        ("version", Some(&plan.version)),
        ("licenses", Some(&plan.licences)),
        ("revision", plan.revision.as_ref()),
        ("source", plan.source.as_ref()),
    ];
    let labels = labels.into_iter();
    labels
        .filter_map(|(label, value)| Some((label, value?.clone())))
        .collect()
}

fn check_size(name: &str, size: u64, limit: u64) -> Result<()> {
    if size > limit {
        bail!(
            "the files of {name} have {} MB, and {} are allowed",
            size / 1_000_000,
            limit / 1_000_000
        );
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

// === impl BuildArgs ===

impl BuildArgs {
    /// Programs of these packages, which are built together.
    fn built(&self, packages: &[&str], programs: &[&str], checkout: &Checkout) -> Result<Built> {
        match &self.binaries {
            Some(directory) => Built::found(directory, programs),
            None => program::build(packages, programs, self.profile, checkout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_above_the_limit_are_refused() {
        assert!(check_size("epp", LIMIT, LIMIT).is_ok());
        let error = check_size("epp", LIMIT + 1_000_000, LIMIT).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the files of epp have 41 MB, and 40 are allowed"
        );
    }
}
