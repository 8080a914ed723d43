//! The description of the API in `OpenAPI` 3.1. It is made from the route table and the wire types, by a test.

/// What is served.
pub(crate) const DOCUMENT: &str = include_str!("../../../config/openapi/metadata-center.json");

#[cfg(test)]
pub(crate) mod make;
#[cfg(test)]
mod tests;
