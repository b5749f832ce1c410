//! Results of MCP tools as the text that a model gets: images are described, and long results truncated.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// Returns a result as text of at most `max` bytes, and a mark if it was longer.
pub(super) fn to_text(result: CallToolResult, max: usize) -> String {
    let mut texts: Vec<String> = result.content.into_iter().map(block_text).collect();
    if texts.is_empty() {
        texts.extend(result.structured_content.map(|value| value.to_string()));
    }
    let prefix = if result.is_error == Some(true) { "Error: " } else { "" };
    truncated(format!("{prefix}{}", texts.join("\n")), max)
}

/// Returns a block of a result as text. Images and other binary content are described.
fn block_text(block: ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(image) => format!("[image, {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[audio, {}]", audio.mime_type),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text,
            ResourceContents::BlobResourceContents { .. } | _ => "[binary resource]".to_owned(),
        },
        ContentBlock::ResourceLink(resource) => format!("[resource {}]", resource.uri),
        _ => "[content of an unknown type]".to_owned(),
    }
}

/// Truncates a text to `max` bytes, at the end of a character.
pub(super) fn truncated(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.push_str("\n[truncated]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_truncated_between_characters() {
        assert_eq!(truncated("äöü".to_owned(), 3), "ä\n[truncated]");
        assert_eq!(truncated("äöü".to_owned(), 6), "äöü");
    }
}
