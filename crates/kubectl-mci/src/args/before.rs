//! Flags of commands that stand before the command, as kubectl takes them.

use super::{CLUSTERSET, Command, FleetArgs, HOME_NAMESPACE, HomeArgs};

/// They mean the same before a command as after it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct BeforeArgs {
    #[arg(long, value_name = "CONTEXT", hide = true)]
    context: Option<String>,

    #[arg(long, value_name = "CONTEXT", hide = true)]
    home_context: Option<String>,

    #[arg(long, value_name = "NAME", hide = true)]
    home_namespace: Option<String>,

    #[arg(long, value_name = "NAME", hide = true)]
    clusterset: Option<String>,
}

// === impl BeforeArgs ===

impl BeforeArgs {
    /// Gives the flags to the command.
    /// # Errors
    /// When the command has no such flag, or has it with another value.
    pub(crate) fn give_to(self, command: &mut Command) -> Result<(), String> {
        match command {
            Command::Check(args) => self.of_fleet(&mut args.fleet),
            Command::Status(args) => self.of_fleet(&mut args.fleet),
            Command::Explain(args) => self.of_fleet(&mut args.fleet),
            Command::Join(args) => self.of_both(&mut args.context, &mut args.home),
            Command::Leave(args) => self.of_both(&mut args.context, &mut args.home),
            Command::Export(args) => self.of_both(&mut args.pool.context, &mut args.home),
            Command::Unexport(args) => self.of_one(&mut args.pool.context),
            Command::Route(args) => self.of_one(&mut args.pool.context),
            // completion in a shell needs no cluster
            Command::Completion(_) | Command::Complete { .. } => Ok(()),
        }
    }

    fn of_fleet(self, args: &mut FleetArgs) -> Result<(), String> {
        self.of_both(&mut args.context, &mut args.home)?;
        let both = args.context.as_ref().zip(args.home.home_context.as_ref());
        match both {
            Some((context, home)) if context != home => Err(format!(
                "--context {context} and --home-context {home} are the same flag of this command: give one"
            )),
            _ => Ok(()),
        }
    }

    fn of_both(self, context: &mut Option<String>, home: &mut HomeArgs) -> Result<(), String> {
        let Self {
            context: named,
            home_context,
            home_namespace,
            clusterset,
        } = self;
        give("--context", named, context)?;
        give("--home-context", home_context, &mut home.home_context)?;
        let namespace = &mut home.home_namespace;
        give_over(
            "--home-namespace",
            home_namespace,
            namespace,
            HOME_NAMESPACE,
        )?;
        give_over("--clusterset", clusterset, &mut home.clusterset, CLUSTERSET)
    }

    fn of_one(self, context: &mut Option<String>) -> Result<(), String> {
        let Self {
            context: named,
            home_context,
            home_namespace,
            clusterset,
        } = self;
        give("--context", named, context)?;
        if home_context.or(home_namespace).or(clusterset).is_some() {
            let text = "this command looks at one cluster and not at home: --context CONTEXT names the cluster";
            return Err(text.to_owned());
        }
        Ok(())
    }
}

fn give(flag: &str, before: Option<String>, after: &mut Option<String>) -> Result<(), String> {
    match (before, &after) {
        (Some(before), Some(after)) if before != **after => Err(twice(flag, &before, after)),
        (Some(before), _) => {
            *after = Some(before);
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

/// Like [`give`], for a flag with a default value.
fn give_over(
    flag: &str,
    before: Option<String>,
    after: &mut String,
    default: &str,
) -> Result<(), String> {
    match before {
        Some(before) if after != default && *after != before => Err(twice(flag, &before, after)),
        Some(before) => {
            *after = before;
            Ok(())
        }
        None => Ok(()),
    }
}

fn twice(flag: &str, before: &str, after: &str) -> String {
    format!("{flag} is given twice, as {before} and as {after}: give it once")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rstest::rstest;

    use super::*;
    use crate::args::Args;

    /// The contexts of the cluster and of home, and the namespace and the ClusterSet of home.
    fn parse(line: &str) -> Result<[String; 4], String> {
        let args = Args::try_parse_from(line.split_whitespace());
        let Args {
            before,
            mut command,
            ..
        } = args.map_err(|error| error.to_string())?;
        before.give_to(&mut command)?;
        let of = |context: &Option<String>, home: &HomeArgs| {
            [
                context.clone().unwrap_or_default(),
                home.home_context.clone().unwrap_or_default(),
                home.home_namespace.clone(),
                home.clusterset.clone(),
            ]
        };
        Ok(match &command {
            Command::Status(args) => {
                let mut found = of(&None, &args.fleet.home);
                found[1] = args.fleet.home_context().unwrap_or_default().to_owned();
                found
            }
            Command::Export(args) => of(&args.pool.context, &args.home),
            Command::Join(args) => of(&args.context, &args.home),
            Command::Route(args) => [
                args.pool.context.clone().unwrap_or_default(),
                String::new(),
                String::new(),
                String::new(),
            ],
            _ => return Err("another command".to_owned()),
        })
    }

    #[rstest]
    #[case::as_kubectl_has_it("kubectl-mci --context west status", ["", "west", HOME_NAMESPACE, CLUSTERSET])]
    #[case::after("kubectl-mci status --context west", ["", "west", HOME_NAMESPACE, CLUSTERSET])]
    #[case::home("kubectl-mci --home-context west --home-namespace ops --clusterset blue status", ["", "west", "ops", "blue"])]
    #[case::export_knows_home("kubectl-mci --context east export llama --home-context west", ["east", "west", HOME_NAMESPACE, CLUSTERSET])]
    #[case::join("kubectl-mci --context kind-east join east --home-namespace ops", ["kind-east", "", "ops", CLUSTERSET])]
    #[case::one_cluster("kubectl-mci --context west route llama", ["west", "", "", ""])]
    fn flags_may_stand_before_the_command(#[case] line: &str, #[case] expected: [&str; 4]) {
        assert_eq!(parse(line), Ok(expected.map(ToOwned::to_owned)));
    }

    #[rstest]
    #[case::two_values(
        "kubectl-mci --context west export llama --context east",
        "given twice"
    )]
    #[case::two_namespaces(
        "kubectl-mci --home-namespace a status --home-namespace b",
        "given twice"
    )]
    #[case::two_names_of_one_flag(
        "kubectl-mci --context west status --home-context east",
        "give one"
    )]
    #[case::no_home(
        "kubectl-mci --home-context west route llama",
        "--context CONTEXT names the cluster"
    )]
    fn flags_that_contradict_or_mean_nothing_are_refused(#[case] line: &str, #[case] words: &str) {
        let error = parse(line).expect_err("refused");
        assert!(error.contains(words), "{error}");
    }
}
