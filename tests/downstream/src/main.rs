//! Program that starts with and without a driver.

fn main() -> einsparse::Result<()> {
    println!("{}", downstream::driver());
    println!("another crate: {}", downstream::version_by_another_crate());
    let (friends, modules) = downstream::friends()?;
    println!("{friends} friends, {modules} modules");
    Ok(())
}
