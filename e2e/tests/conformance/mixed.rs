//! One import, entries of both routing modes (Q9): each exporter chooses for itself.

use anyhow::Result;
use e2e::watching::becomes;

use crate::{
    parent::{ADDRESS, asks_a_parent, asks_a_picker, export_by_parents, serve},
    scene::Stage,
};

const POOL: &str = "pool";
const GATEWAY: &str = "front";

pub(crate) async fn entries_of_both_modes_stand_in_one_import(stage: &Stage) -> Result<()> {
    stage
        .play(async |scene| {
            scene.exporter(0, POOL, 8000).await?;
            scene.picker(1).await?;
            scene.pool(1, POOL, 8000).await?;
            serve(scene, 1, POOL, &[(GATEWAY, ADDRESS)]).await?;
            export_by_parents(scene, 1, POOL).await?;
            for at in 0..scene.count() {
                let from: Vec<usize> = [0, 1].into_iter().filter(|&from| from != at).collect();
                let what = format!("import {POOL} in {} of both modes", scene.name(at));
                becomes(&scene.imports(at), POOL, &what, |import| {
                    let import = scene.is_of(import, &from)?;
                    import.clusters().iter().try_for_each(|entry| {
                        let as_wanted = if entry.name == scene.name(0) {
                            asks_a_picker(entry)
                        } else {
                            asks_a_parent(entry, &scene.namespace, GATEWAY, ADDRESS)
                        };
                        as_wanted.then_some(()).ok_or_else(|| format!("{entry:?}"))
                    })
                })
                .await?;
            }
            Ok(())
        })
        .await
}
