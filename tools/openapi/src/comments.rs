//! Comments of proto files, as descriptions in the documents.

use std::collections::BTreeMap;

use prost_reflect::{
    DescriptorPool, EnumDescriptor, EnumValueDescriptor, FieldDescriptor, FileDescriptor, MessageDescriptor,
    MethodDescriptor, ServiceDescriptor,
};

/// Comments in front of the elements of proto files.
pub(super) struct Comments {
    /// Text by the name of the file and the path of the element in its descriptor.
    texts: BTreeMap<(String, Vec<i32>), String>,
}

/// Element of a proto file that can have a comment.
pub(super) trait Commented {
    /// Returns the file of the element, and its path in the descriptor of the file.
    fn place(&self) -> (FileDescriptor, Vec<i32>);
}

macro_rules! commented {
    ($($descriptor:ty),*) => { $(
        impl Commented for $descriptor {
            fn place(&self) -> (FileDescriptor, Vec<i32>) {
                (self.parent_file(), self.path().to_vec())
            }
        }
    )* };
}

commented!(
    EnumDescriptor,
    EnumValueDescriptor,
    FieldDescriptor,
    MessageDescriptor,
    MethodDescriptor,
    ServiceDescriptor
);

impl Comments {
    /// Reads the comments of all files of a pool. Names of fields in them are replaced by their names in JSON.
    pub(super) fn new(pool: &DescriptorPool) -> Self {
        let fields = pool.all_messages().flat_map(|message| message.fields().collect::<Vec<_>>());
        let names: BTreeMap<_, _> =
            fields.map(|field| (field.name().to_owned(), field.json_name().to_owned())).collect();
        let mut texts = BTreeMap::new();
        for file in pool.files() {
            let locations = file.file_descriptor_proto().source_code_info.iter().flat_map(|info| &info.location);
            for location in locations {
                if let Some(comment) = &location.leading_comments {
                    let text = with_json_names(&paragraphs(comment), &names);
                    texts.insert((file.name().to_owned(), location.path.clone()), text);
                }
            }
        }
        Self { texts }
    }

    /// Returns the comment of an element.
    pub(super) fn of(&self, element: &impl Commented) -> Option<String> {
        let (file, path) = element.place();
        self.texts.get(&(file.name().to_owned(), path)).cloned()
    }
}

/// Joins the lines of each paragraph.
fn paragraphs(comment: &str) -> String {
    let lines: Vec<_> = comment.lines().map(str::trim).collect();
    let paragraphs = lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty());
    paragraphs.map(|lines| lines.join(" ")).collect::<Vec<_>>().join("\n\n")
}

/// Replaces the names of fields in code spans, such as `configuration.return_immediately`, by those in JSON.
fn with_json_names(text: &str, names: &BTreeMap<String, String>) -> String {
    let spans = text.split('`').enumerate().map(|(index, span)| {
        if index % 2 == 0 {
            return span.to_owned();
        }
        let parts: Vec<_> = span.split('.').map(|part| names.get(part).map_or(part, String::as_str)).collect();
        parts.join(".")
    });
    spans.collect::<Vec<_>>().join("`")
}

/// Returns the first sentence of a text, without its full stop.
pub(super) fn summary(text: &str) -> String {
    let end = text.find(". ").or_else(|| text.find(".\n")).unwrap_or(text.len());
    text[..end].trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_joined_and_name_members_of_json() {
        let names = BTreeMap::from([("page_token".to_owned(), "pageToken".to_owned())]);
        let text = paragraphs(" The `page_token` of\n the page. See `x.page_token`.\n\n Second\n paragraph `a`.\n");
        let text = with_json_names(&text, &names);
        assert_eq!(text, "The `pageToken` of the page. See `x.pageToken`.\n\nSecond paragraph `a`.");
        assert_eq!(summary(&text), "The `pageToken` of the page");
    }
}
