//! The ClusterSet controller.
#[cfg(test)]
mod fixtures;
mod index;
mod inventory;
mod moment;
mod name;
mod plan;
