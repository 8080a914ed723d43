//! `kubectl mci explain`: what the controller says of one pool; where it cannot be asked, what conditions say.

use std::io::Write;

use anyhow::bail;
use mci_model::explain::{Explanation, render};

use crate::{
    args::{ExplainArgs, HomeArgs},
    cluster::Cluster,
    contexts::Contexts,
    controller::{self, PageError},
    fleet::Fleet,
    output::{Paint, plain},
    status,
};

pub(crate) async fn explain(
    args: ExplainArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let ExplainArgs {
        pool,
        namespace,
        fleet: fleet_args,
    } = args;
    let HomeArgs {
        home_context,
        home_namespace,
        ..
    } = &fleet_args.home;
    let home_context = contexts.choose(home_context.as_deref(), "--home-context")?;
    let (namespace, name) = pool.of(namespace.as_deref(), contexts.namespace(&home_context));
    let home = Cluster::connect(contexts, &home_context, &home_context).await?;
    let path = format!("/debug/explain/{namespace}/{name}");
    let problem = match controller::page(&home, home_namespace, &path).await {
        Ok(page) => match serde_json::from_str::<Explanation>(&page) {
            Ok(explanation) => {
                let format = fleet_args.output;
                let text = format.render(&explanation, || readable(&explanation))?;
                return Ok(out.write_all(text.as_bytes())?);
            }
            Err(error) => {
                format!("the controller answers in another way than this version does: {error}")
            }
        },
        Err(PageError::Call(error)) if error.is_not_found() => bail!(
            "{namespace}/{name} is unknown: no member that the controller has listed has an InferencePool or InferencePoolImport of this name; see kubectl mci status, and kubectl mci check for the members"
        ),
        Err(error) => error.to_string(),
    };
    let problem = plain(&problem);
    eprintln!("note: {problem}\nnote: what follows is from the conditions of the objects alone");
    let fleet = Fleet::of(&fleet_args, contexts).await?;
    fleet.note_unseen_secrets();
    let mut seen = status::judge(&status::gather(&fleet.looks, Some(&namespace)).await);
    seen.pools.retain(|one| one.name == name);
    if seen.pools.is_empty() && seen.clusters.iter().all(|one| one.problem.is_none()) {
        bail!("{namespace}/{name}: no cluster exports it or has an import of it");
    }
    let format = fleet_args.output;
    let text = format.render(&seen, || status::render(&seen, Paint::of_stdout()))?;
    Ok(out.write_all(text.as_bytes())?)
}

/// The controller's tables, line by line without what would move a cursor.
fn readable(explanation: &Explanation) -> String {
    let text = render(explanation);
    let lines = text.lines().map(plain);
    lines.fold(String::new(), |all, line| all + &line + "\n")
}
