//! Starts with and without a driver.

fn main() {
    println!("{}", downstream::driver());
}
