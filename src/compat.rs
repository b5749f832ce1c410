//! Protocol 0.3, and 0.2 where it is the same: what a call in it is to the one service, which speaks 1.0.

pub mod beside;
pub mod card;
pub mod classic;
pub mod event;
mod files;
pub mod json;
pub mod legacy;
mod message;
pub mod rest;
pub mod service;
