//! An A2A (Agent2Agent) server and library: one service over gRPC, HTTP+JSON and JSON-RPC, on one port.

pub mod call;
pub mod check;
pub mod error;
pub mod event;
pub mod json;
pub mod pb;
pub mod seam;
pub mod transport;
