//! `cargo xtask images`: an OCI image archive of each program, without a container daemon.
//!
//! One layer on nothing: the program, which is linked statically, CA certificates, and the licences of all that. What goes in is
//! listed in order, without times and owners, and built without paths of the machine, so that the same commit gives the same digest.

mod archive;
mod files;
mod libraries;
mod licences;
mod metadata;
mod paths;
mod program;
mod sbom;
mod system;
mod table;
mod toolchain;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;

pub(crate) use self::{archive::platform, program::is_dirty};
use self::{
    archive::{Archive, Registry, Settings},
    files::Files,
    licences::{Licences, NOTICES},
    metadata::Metadata,
    paths::Paths,
    program::{Built, Checkout, Linkage},
    sbom::{About, Component},
    table::Row,
    toolchain::Toolchain,
};
use crate::{demo::PROGRAMS, tools, workspace};

/// The one place of the version is the workspace's `Cargo.toml`.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Bytes of all files of an image of ours: above that something has got in by mistake. `docs/images.md` has what they have.
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
    /// Tag of our programs' images, such as one for each commit: nodes that have a tag do not look whether it is another image now
    #[arg(long, default_value = VERSION, value_name = "TAG", value_parser = tag)]
    tag: String,
    /// Push each image as REGISTRY/PREFIX/PROGRAM:TAG, with the credentials that docker login keeps
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

/// What programs are built from, and by what.
struct Origin {
    checkout: Checkout,
    metadata: Metadata,
    toolchain: Toolchain,
}

/// A program of ours, built.
struct Finished {
    name: &'static str,
    binary: PathBuf,
    about: About,
    components: Vec<Component>,
}

/// A program as it is released by itself, and what its licences say.
pub(crate) struct Released {
    pub(crate) name: &'static str,
    pub(crate) binary: PathBuf,
    pub(crate) notices: String,
    /// Files to which the notices of all programs refer, by their names.
    pub(crate) licences: BTreeMap<&'static str, Vec<u8>>,
    /// The oldest GNU C library that it runs with, where it takes that from the system.
    pub(crate) c_library: Option<String>,
}

/// What an image is made of.
struct Plan {
    name: String,
    version: String,
    tag: String,
    description: String,
    licences: String,
    /// Of what it is built from; none where that is not this checkout, or not known to be.
    revision: Option<String>,
    source: Option<String>,
    binary: PathBuf,
    limit: u64,
    components: Vec<Component>,
    /// Whether the components are those of this very binary.
    is_certain: bool,
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
        tag: VERSION.to_owned(),
        push: None,
        build: build.clone(),
    };
    make(&args, directory)
}

/// The programs of images, and this plugin, which runs beside people's kubectl and so uses their C library.
pub(crate) fn released(build: &BuildArgs, plugin: &'static str) -> Result<Vec<Released>> {
    let origin = Origin::read(build)?;
    let mut finished = build.finished(&PROGRAMS, &PROGRAMS, Linkage::Static, &origin)?;
    finished.extend(build.finished(&[plugin], &[plugin], Linkage::Dynamic, &origin)?);
    let released = finished.into_iter().map(|program| {
        let licences = Licences::read(&program.components, &origin.toolchain)?;
        Ok(Released {
            name: program.name,
            c_library: libraries::c_library_needed(&program.binary)?,
            binary: program.binary,
            notices: licences.notices,
            licences: licences.others,
        })
    });
    released.collect()
}

fn make(args: &Args, directory: &Path) -> Result<()> {
    let crane = tools::crane()?;
    let certificates = tools::certificates()?;
    let origin = Origin::read(&args.build)?;
    let plans = plans(args, &origin)?;
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
        add_licences(&mut files, &components, &origin.toolchain)?;
        let size = files.size();
        check_size(&plan.name, size, plan.limit)?;
        let settings = Settings {
            name: &plan.name,
            tag: &plan.tag,
            entry: format!("/{}", plan.name),
            user: USER,
            labels: labels(plan),
        };
        let archive = registry.assemble(&settings, &files, directory)?;
        let document = directory.join(format!("{}.spdx.json", plan.name));
        if plan.is_certain {
            let image = Component::image(&plan.name, &plan.version, &plan.licences);
            let time = &origin.checkout.time;
            let text = sbom::document(&image, archive.digest(), time, &components);
            std::fs::write(&document, text)
                .with_context(|| format!("writing {}", document.display()))?;
        } else if document.exists() {
            std::fs::remove_file(&document)
                .with_context(|| format!("removing {}, of an earlier image", document.display()))?;
        }
        rows.push(Row {
            image: format!("isthmus/{}:{}", plan.name, plan.tag),
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

fn add_licences(files: &mut Files, components: &[Component], toolchain: &Toolchain) -> Result<()> {
    let licences = Licences::read(components, toolchain)?;
    let notices = licences.notices.into_bytes();
    let texts = licences.others.into_iter().chain([(NOTICES, notices)]);
    for (name, text) in texts {
        files.add(&format!("/licenses/{name}"), 0o644, text);
    }
    Ok(())
}

fn push(archive: &Archive<'_>, prefix: &str, plan: &Plan) -> Result<()> {
    let prefix = prefix.trim_end_matches('/');
    archive.push(&format!("{prefix}/{}:{}", plan.name, plan.tag))
}

fn plans(args: &Args, origin: &Origin) -> Result<Vec<Plan>> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|it| it == name);
    let programs: Vec<&str> = PROGRAMS.into_iter().filter(|it| wanted(it)).collect();
    let mut plans = Vec::new();
    if !programs.is_empty() {
        let is_certain = args.build.binaries.is_none();
        let build = &args.build;
        for program in build.finished(&PROGRAMS, &programs, Linkage::Static, origin)? {
            plans.push(Plan {
                name: program.name.to_owned(),
                version: VERSION.to_owned(),
                tag: args.tag.clone(),
                description: program.about.description,
                licences: program.about.licences,
                revision: is_certain.then(|| origin.checkout.revision.clone()),
                source: origin.checkout.source.clone(),
                binary: program.binary,
                limit: LIMIT,
                components: program.components,
                is_certain,
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
        is_certain: true,
        tag: version.clone(),
        version,
    })
}

/// A tag, as registries take it.
fn tag(text: &str) -> Result<String, String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = text.starts_with(is_word);
    if begins && text.len() <= 128 && text.chars().all(|c| is_word(c) || c == '.' || c == '-') {
        Ok(text.to_owned())
    } else {
        Err("expected up to 128 letters, digits, '_', '.' and '-', the first no '.' or '-', such as 0.1.0-4f2c1a9".to_owned())
    }
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

// === impl Origin ===

impl Origin {
    fn read(build: &BuildArgs) -> Result<Self> {
        Ok(Self {
            checkout: Checkout::read(build.source.clone())?,
            metadata: Metadata::read(&program::target()?)?,
            toolchain: Toolchain::read()?,
        })
    }
}

// === impl BuildArgs ===

impl BuildArgs {
    /// The option with which programs are not what others should get.
    pub(crate) fn for_trials(&self) -> Option<&'static str> {
        if self.binaries.is_some() {
            return Some("--binaries");
        }
        (self.profile != Profile::Release).then_some("--profile quick-release")
    }

    /// Programs of these packages, which are built together.
    fn finished(
        &self,
        packages: &[&str],
        programs: &[&'static str],
        linkage: Linkage,
        origin: &Origin,
    ) -> Result<Vec<Finished>> {
        let built = if let Some(directory) = &self.binaries {
            Built::found(directory, programs)?
        } else {
            let paths = Paths::read(&origin.metadata, &origin.toolchain)?;
            let checkout = &origin.checkout;
            program::build(packages, programs, self.profile, linkage, &paths, checkout)?
        };
        let graph = sbom::Graph::read(&program::target()?, packages, &origin.metadata)?;
        let programs = programs.iter().map(|name| {
            let binary = built.path(name);
            let mut components = graph.components(name)?;
            components.push(Component::rust(&origin.toolchain.version));
            if libraries::is_static(&binary)? {
                components.extend(system::linked()?);
            }
            Ok(Finished {
                name,
                about: graph.about(name)?,
                binary,
                components,
            })
        });
        programs.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_one_that_registries_take() {
        let longest = "a".repeat(128);
        for good in ["0.1.0", "0.1.0-4f2c1a9", "_x", &longest] {
            assert_eq!(tag(good).as_deref(), Ok(good));
        }
        let too_long = "a".repeat(129);
        for bad in ["", ".1", "-a", "a/b", "a:b", "a b", "é", &too_long] {
            assert!(tag(bad).is_err(), "{bad}");
        }
    }

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
