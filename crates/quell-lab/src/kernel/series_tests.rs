use std::time::SystemTime;

use super::*;

/// A source directory with a few files, and a tree copied from it.
struct Fixture {
    dir: tempfile::TempDir,
}

const MAIN_C: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n";

impl Fixture {
    fn new() -> Self {
        let fixture = Self { dir: tempfile::tempdir().unwrap() };
        for root in [fixture.source_dir(), fixture.tree()] {
            fs::create_dir_all(root.join("mm")).unwrap();
            fs::write(root.join("mm/main.c"), MAIN_C).unwrap();
            fs::write(root.join("mm/gone.c"), "delete me\n").unwrap();
        }
        fixture
    }

    fn source_dir(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn apply(&self, patches: &[Patch]) -> Result<()> {
        apply(&self.tree(), &Source::Dir(self.source_dir()), "test 1.0", patches)
    }

    fn apply_archive(&self, patches: &[Patch]) -> Result<()> {
        apply(&self.tree(), &Source::Tarball("unused.tar.xz".into()), "test 1.0", patches)
    }

    fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.tree().join(file)).ok()
    }

    fn time(&self, file: &str) -> SystemTime {
        fs::metadata(self.tree().join(file)).unwrap().modified().unwrap()
    }
}

fn patch(name: &str, text: &str) -> Patch {
    Patch { name: name.to_owned(), content: text.as_bytes().to_vec() }
}

fn change_two() -> Patch {
    patch(
        "t/0001.patch",
        "--- a/mm/main.c\n+++ b/mm/main.c\n@@ -1,4 +1,4 @@\n one\n-two\n+TWO\n three\n four\n",
    )
}

fn add_and_delete() -> Patch {
    patch(
        "t/0002.patch",
        "--- /dev/null\n+++ b/mm/new.c\n@@ -0,0 +1 @@\n+fresh\n--- a/mm/gone.c\n+++ /dev/null\n@@ -1 +0,0 @@\n-delete me\n",
    )
}

#[test]
fn a_series_is_applied_and_taken_back() {
    for archive in [false, true] {
        let fixture = Fixture::new();
        let apply = |patches: &[Patch]| {
            if archive { fixture.apply_archive(patches) } else { fixture.apply(patches) }.unwrap();
        };
        for _ in 0..2 {
            apply(&[change_two(), add_and_delete()]);
            assert_eq!(fixture.text("mm/main.c").unwrap(), MAIN_C.replace("two", "TWO"));
            assert_eq!(fixture.text("mm/new.c").as_deref(), Some("fresh\n"));
            assert_eq!(fixture.text("mm/gone.c"), None);
            apply(&[]);
            assert_eq!(fixture.text("mm/main.c").as_deref(), Some(MAIN_C));
            assert_eq!(fixture.text("mm/new.c"), None);
            assert_eq!(fixture.text("mm/gone.c").as_deref(), Some("delete me\n"));
        }
    }
}

#[test]
fn files_that_stay_the_same_keep_their_time() {
    let fixture = Fixture::new();
    fixture.apply(&[change_two()]).unwrap();
    let before = fixture.time("mm/main.c");
    std::thread::sleep(std::time::Duration::from_millis(20));
    fixture.apply(&[change_two(), add_and_delete()]).unwrap();
    assert_eq!(fixture.time("mm/main.c"), before);
}

#[test]
fn a_patch_that_does_not_apply_names_its_hunk_and_changes_nothing() {
    let fixture = Fixture::new();
    let wrong = patch(
        "t/0003.patch",
        "--- a/mm/main.c\n+++ b/mm/main.c\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n@@ -7,2 +7,2 @@\n seven\n-ate\n+acht\n",
    );
    let error = fixture.apply(&[wrong]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("t/0003.patch") && text.contains("mm/main.c: hunk #2 at line 7"), "{text}");
    assert_eq!(fixture.text("mm/main.c").as_deref(), Some(MAIN_C));
    fixture.apply(&[change_two()]).unwrap();
}

#[test]
fn patches_outside_the_source_and_empty_ones_are_refused() {
    let outside = patch("p", "--- a/../etc/passwd\n+++ b/../etc/passwd\n@@ -1 +1 @@\n-a\n+b\n");
    assert!(touched_files(&outside).unwrap_err().to_string().contains("outside the source"));
    assert!(touched_files(&patch("p", "just words\n")).unwrap_err().to_string().contains("holds no change"));
}

#[test]
fn a_removed_line_that_looks_like_a_header_is_not_one() {
    let patch = patch("p", "--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1 @@\n--- comment\n keep\n");
    assert_eq!(touched_files(&patch).unwrap(), BTreeSet::from([PathBuf::from("x.sql")]));
}

#[test]
fn the_series_file_has_comments_and_rules() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    assert_eq!(read_series(dir.path()).unwrap(), []);
    write("patches/a/1.patch", "x");
    write("series", "# head\n\na/1.patch  # why\n");
    assert_eq!(read_series(dir.path()).unwrap(), [patch("a/1.patch", "x")]);
    for (series, reason) in [
        ("a/1.patch\na/1.patch\n", "listed twice"),
        ("../1.patch\n", "not a path below"),
        ("/etc/passwd\n", "not a path below"),
        ("a/2.patch\n", "Cannot read the patch"),
    ] {
        write("series", series);
        let error = read_series(dir.path()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
