//! Text that others wrote: files, objects of tenants such as a ConfigMap or a Secret, and answers of servers.
//!
//! ```text
//!  text ─► length, UTF-8, brackets ─► budget: values and bytes, aliases expanded ─► T  (read)
//!                                         │                                     ├─► Node (Node::parse)
//!                                         └─► YamlError: path, line, at most 1 KiB
//! ```
//!
//! The YAML library bounds neither what an alias repeats nor how long its errors are: 112 kB took 700 MB, and one error was
//! 3 MB. So no other crate reads YAML of another party; a test compares their dependencies.
//!
//! The crate does not know what the texts mean.

mod budget;
mod clip;
mod error;
mod limits;
mod lines;
mod measure;
mod read;
mod tree;

pub use clip::{MAX_MESSAGE, clipped};
pub use error::{Place, YamlError};
pub use limits::Limits;
pub use lines::Lines;
pub use read::read;
pub use tree::Node;
