//! The rights that inventory objects grant their members: the networks of their pods, and the namespaces that they may
//! export. Pure.

use crd::{
    annotations::{EXPORT_NAMESPACES, POD_CIDRS},
    networks::parse_pod_cidrs,
};

use mci_model::index::{grant::Stated, origin::Origin};

/// The texts of one object; none if it does not have one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Statements {
    /// The value of [`POD_CIDRS`].
    pub pod_cidrs: Option<Text>,
    /// The value of [`EXPORT_NAMESPACES`].
    pub export_namespaces: Option<Text>,
}

/// A text, or the reason why it cannot be read.
pub type Text = Result<String, String>;

/// Ends of the names of files beside a member's kubeconfig, each of which holds one statement.
const FILES: [&str; 2] = ["pod-cidrs", "export-namespaces"];

/// The files beside a member's kubeconfig: one for its pods' networks, and one for the namespaces that it may export.
/// Older releases skip files whose names begin with a dot, and read every other file as a kubeconfig.
pub fn statement_files(member: &str) -> [String; 2] {
    FILES.map(|end| format!(".{member}.{end}"))
}

/// Whether a file, or the key of a mounted Secret, is no kubeconfig: its name begins with a dot, or ends as that of a
/// statement whose dot was forgotten.
pub fn is_no_kubeconfig(file: &str) -> bool {
    let end = file.rsplit_once('.').map(|(_, end)| end);
    file.starts_with('.') || end.is_some_and(|end| FILES.contains(&end))
}

// === impl Statements ===

impl Statements {
    /// The texts that `find` returns for the names of the annotations.
    pub(crate) fn of<'a>(find: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |name: &str| find(name).map(|text| Ok(text.to_owned()));
        Self {
            pod_cidrs: text(POD_CIDRS),
            export_namespaces: text(EXPORT_NAMESPACES),
        }
    }

    /// Sets in `origin` what the texts mean, and adds an error there for each that cannot be read.
    pub(crate) fn read_into(&self, origin: &mut Origin) {
        let Self {
            pod_cidrs,
            export_namespaces,
        } = self;
        let mut complain = |name: &str, error: String| {
            tracing::warn!(source = %origin.source, error, "{name} is not used: what it said before stays");
            origin.complaints.push(format!(
                "{name} is not used, and what it said before stays: {error}"
            ));
        };
        origin.pod_cidrs = read(
            pod_cidrs.as_ref(),
            |text| parse_pod_cidrs(text).map_err(|error| error.to_string()),
            |error| complain(POD_CIDRS, error),
        );
        origin.export_namespaces = read(
            export_namespaces.as_ref(),
            |text| {
                let parsed = text.parse();
                parsed.map_err(|error: mci_model::index::grant::ExportNamespacesError| {
                    error.to_string()
                })
            },
            |error| complain(EXPORT_NAMESPACES, error),
        );
    }
}

fn read<T>(
    text: Option<&Text>,
    parse: impl Fn(&str) -> Result<T, String>,
    complain: impl FnOnce(String),
) -> Stated<T> {
    let read = match text {
        None => return Stated::Absent,
        Some(Ok(text)) => parse(text),
        Some(Err(error)) => Err(error.clone()),
    };
    match read {
        Ok(value) => Stated::Known(value),
        Err(error) => {
            complain(error);
            Stated::Unreadable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracker::member_name;

    #[test]
    fn files_of_statements_are_hidden_from_programs_that_do_not_know_them() {
        let files = statement_files("east");
        assert_eq!(files, [".east.pod-cidrs", ".east.export-namespaces"]);
        let none = files.iter().map(String::as_str).chain(["east.pod-cidrs"]);
        assert!(none.into_iter().all(is_no_kubeconfig));
        let kubeconfigs = ["east", "east.yaml", "pod-cidrs"];
        assert!(!kubeconfigs.into_iter().any(is_no_kubeconfig));
    }

    #[test]
    fn the_command_in_the_manifest_makes_keys_that_are_read() {
        let manifest = include_str!("../../../config/controller.yaml");
        let keys = |flag: &str| -> Vec<&str> {
            let ends = manifest.split(flag).skip(1);
            ends.filter_map(|end| Some(end.split_once('=')?.0))
                .collect()
        };
        let members = keys("--from-file=");
        let read = members
            .iter()
            .map(|file| statement_files(member_name(file)));
        let read: Vec<String> = read.flatten().collect();
        let stated = keys("--from-literal=");
        assert_eq!((members.len(), stated.len()), (2, 2), "{manifest}");
        for key in stated {
            assert!(read.iter().any(|file| file == key), "{key} is not read");
        }
    }

    #[test]
    fn texts_are_read_or_complained_about() {
        let mut origin = Origin::default();
        let statements = Statements {
            pod_cidrs: Some(Ok("10.2.0.0/16".to_owned())),
            export_namespaces: Some(Ok("LLM".to_owned())),
        };
        statements.read_into(&mut origin);
        let networks = origin.pod_cidrs.known().expect("networks");
        assert_eq!(networks[0].to_string(), "10.2.0.0/16");
        assert_eq!(origin.export_namespaces, Stated::Unreadable);
        assert_eq!(origin.complaints.len(), 1);
        let complaint = &origin.complaints[0];
        assert!(
            complaint.contains(EXPORT_NAMESPACES) && complaint.contains("\"LLM\""),
            "{complaint}"
        );
    }
}
