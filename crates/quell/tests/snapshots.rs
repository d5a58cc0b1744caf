//! Help, version and error messages, word for word. After a wanted change:
//! `TRYCMD=overwrite cargo test -p quell --test snapshots`.

#[test]
fn help_and_errors_read_as_recorded() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}
