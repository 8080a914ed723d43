//! What runs for each Gateway: an Envoy Deployment and a Service.

pub(crate) mod parameters;
