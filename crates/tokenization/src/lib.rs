//! From a client's request to token ids, as the engine itself makes them.
//!
//! Owns chat templates, tokenizers and the catalogue of models; no other crate uses the libraries for these. Knows no
//! HTTP and no thread: its calls take as long as they take, and whoever makes them chooses where. Time and chance are
//! parameters.
//!
//! ```text
//!  models file ──► Catalogue ──► Model
//!                                  │ prompt: body ──► template ──► text
//!                                  ▼ encode: text ──► parts ──► SegmentCache, tokenizer ──► ids
//! ```

mod catalogue;
mod chat;
mod files;
#[cfg(test)]
mod fixtures;
mod growth;
mod json;
mod model;
mod python;
mod rebuilt;
#[cfg(any(test, feature = "test-util"))]
pub mod sample;
mod segment;
mod template;
mod tokenizer;

pub use catalogue::{Catalogue, CatalogueError, ModelEntry, Served};
pub use files::LoadError;
pub use model::{Api, ContentFormatOption, EncodeOptions, Model, ModelSource, Prompt};
pub use rebuilt::Transformers;
pub use segment::{EncodedBytes, SegmentCache};
