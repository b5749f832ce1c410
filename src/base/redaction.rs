//! Secrets in text that commands write, which neither the log nor an error may show.

/// Minimum length in bytes of a value that is redacted. Shorter ones occur in other words too.
const MIN_SECRET: usize = 6;

/// Text in place of a secret.
const HIDDEN: &str = "(hidden)";

/// Ends of names of secrets, in upper case.
const NAMES: &str =
    "TOKEN SECRET PASSWORD PASSWD PASSPHRASE PASS PWD AUTH AUTHORIZATION BEARER CREDENTIAL CREDENTIALS APIKEY _KEY";

/// Names that end like those of secrets: the result of a test, and directories.
const OTHER_NAMES: [&str; 3] = ["PASS", "PWD", "OLDPWD"];

/// Secrets that a command may write: the values of environment variables that may be secrets by their names.
#[derive(Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    /// Returns the secrets in the environment of this process and in further variables of the command.
    #[cfg(any(all(feature = "exec", unix), feature = "mcp"))]
    pub(crate) fn of(variables: &std::collections::BTreeMap<String, String>) -> Self {
        let own =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let all = own.chain(variables.clone()).filter(|(name, _)| may_be_secret(name));
        let lines = all.flat_map(|(_, value)| value.lines().map(str::to_owned).collect::<Vec<_>>());
        let mut values: Vec<_> = lines.filter(|line| line.len() >= MIN_SECRET).collect();
        // A value may be a part of another one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    /// Replaces the secrets in a line, also one that is cut at its end; words after the names of secrets and of authentication schemes;
    /// and credentials in URLs.
    pub(crate) fn redact(&self, line: &str) -> String {
        let mut line = self.0.iter().fold(line.to_owned(), |line, secret| line.replace(secret, HIDDEN));
        let cut = |secret: &String| {
            let lengths = MIN_SECRET..secret.len().min(line.len() + 1);
            lengths.rev().find(|length| secret.get(..*length).is_some_and(|beginning| line.ends_with(beginning)))
        };
        if let Some(length) = self.0.iter().filter_map(cut).max() {
            line.truncate(line.len() - length);
            line += HIDDEN;
        }
        let mut redacted = String::with_capacity(line.len());
        for word in line.split_inclusive(char::is_whitespace) {
            match word.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
                Some((scheme, host)) => redacted.extend([scheme, "://", HIDDEN, "@", host]),
                None => redacted.push_str(word),
            }
        }
        without_named(&redacted)
    }
}

/// Replaces the words that follow the names of secrets, such as `api_key=x` and `"password": "x"`, and authentication schemes.
fn without_named(line: &str) -> String {
    let is_separator = |c: char| c.is_whitespace() || ":=&?,;'\"`{}()[]<>|\\".contains(c);
    let (mut redacted, mut rest) = (String::with_capacity(line.len()), line);
    // The word before, and whether it is a scheme whose credentials follow.
    let (mut before, mut has_credentials) = ("", false);
    while !rest.is_empty() {
        let (gap, after) = rest.split_at(rest.find(|c| !is_separator(c)).unwrap_or(rest.len()));
        redacted.push_str(gap);
        let is_next = !gap.contains(['&', ',', ';']);
        let is_value = is_next && is_secret(before) && (before.starts_with("--") || gap.contains([':', '=']));
        let follows_scheme = is_next && is_scheme(before);
        let end = if is_value || follows_scheme {
            let quote = gap.chars().next_back().filter(|c| "'\"`".contains(*c));
            after.find(|c: char| quote.map_or(c.is_whitespace() || "&,;'\"`}".contains(c), |quote| c == quote))
        } else {
            after.find(is_separator)
        };
        let (word, following) = after.split_at(end.unwrap_or(after.len()));
        let names_scheme = is_value && is_scheme(word);
        let is_hidden = is_value && !names_scheme || follows_scheme && (has_credentials || is_token(word));
        redacted.push_str(if is_hidden && !word.is_empty() { HIDDEN } else { word });
        (before, has_credentials, rest) = (word, names_scheme, following);
    }
    redacted
}

/// Returns true for the name of an authentication scheme whose credentials are one word.
fn is_scheme(word: &str) -> bool {
    ["bearer", "basic", "token"].iter().any(|scheme| word.trim_start_matches('-').eq_ignore_ascii_case(scheme))
}

/// Returns true for a word that is rather a token than a word of a sentence.
fn is_token(word: &str) -> bool {
    let is_unusual = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase() || c == '=';
    word.len() >= 20 || word.len() >= MIN_SECRET && word.chars().skip(1).any(is_unusual)
}

/// Returns true for the name of a secret in a text: a member, a parameter, a header or a variable.
fn is_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase().replace('-', "_");
    !OTHER_NAMES.contains(&name) && NAMES.split(' ').any(|end| upper.ends_with(end))
}

/// Returns true for the name of a variable whose value may be a secret of any program.
#[cfg(any(all(feature = "exec", unix), feature = "mcp"))]
fn may_be_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let parts = ["TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "APIKEY", "_KEY"];
    // Such as AWS_WEB_IDENTITY_TOKEN_FILE.
    !upper.ends_with("_FILE") && (upper == "PASS" || is_secret(name) || parts.iter().any(|part| upper.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted() {
        let variables = [
            ("API_KEY", "sesame-open"),
            ("DB_PASS", "open-wide"),
            ("MYSQL_PWD", "hush-hush"),
            ("KEY_PASSPHRASE", "pass-phrase"),
            ("BASIC_AUTH", "ada-lovelace"),
            ("GIT_CREDENTIAL", "cred-value"),
            ("CITY", "Lisbon"),
            ("PWD", "/home/ada"),
            ("SHORT_TOKEN", "a"),
        ];
        let secrets = Secrets::of(&variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        for (line, expected) in [
            ("key=sesame-open, Lisbon", "key=(hidden), Lisbon"),
            ("a open-wide hush-hush b", "a (hidden) (hidden) b"),
            ("pass-phrase/ada-lovelace/cred-value", "(hidden)/(hidden)/(hidden)"),
            ("{'Authorization': 'Bearer abc123'}", "{'Authorization': '(hidden)'}"),
            ("Authorization: Bearer abcdef", "Authorization: Bearer (hidden)"),
            ("Bearer\tabc1234 Basic  dXNlcjpwYXNz", "Bearer\t(hidden) Basic  (hidden)"),
            ("Bearer:abcdef bearer=abcdef Token abc1234", "Bearer:(hidden) bearer=(hidden) Token (hidden)"),
            ("Bearer token missing", "Bearer token missing"),
            ("invalid token in line 7", "invalid token in line 7"),
            ("X-Api-Key: x", "X-Api-Key: (hidden)"),
            (
                "GET /a?access_token=x/y.z&city=Lisbon&api_key=z",
                "GET /a?access_token=(hidden)&city=Lisbon&api_key=(hidden)",
            ),
            ("password=x, user=ada", "password=(hidden), user=ada"),
            (r#"{"password": "a b", "n": 1}"#, r#"{"password": "(hidden)", "n": 1}"#),
            (r#"{\"apiKey\":\"x\"}"#, r#"{\"apiKey\":\"(hidden)"}"#),
            ("run --api-key x --city y", "run --api-key (hidden) --city y"),
            ("PASS: test_city", "PASS: test_city"),
            ("PWD=/home/ada", "PWD=/home/ada"),
            ("password=&x=1", "password=&x=1"),
            ("  connect postgres://u:p@db/x failed", "  connect postgres://(hidden)@db/x failed"),
            ("a line that is cut at sesame-o", "a line that is cut at (hidden)"),
            ("  a  b ", "  a  b "),
        ] {
            assert_eq!(secrets.redact(line), expected);
        }
    }
}
