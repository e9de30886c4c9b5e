//! Rows of the family `tutorial`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_tutorial {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            tutorial {
                levels "levels" LevelsParams Teaching {
                    level_0_loop: Direct, F16, Level<0>;
                    level_1_shared: Direct, F16, Level<1>;
                    level_2_mma: Direct, F16, Level<2>;
                    level_3_wgmma: Direct, F16, Level<3>;
                    level_4_ring: Direct, F16, Level<4>;
                    level_5_roles: Direct, F16, Level<5>;
                    level_6_persistent: Direct, F16, Level<6>;
                }
            }
        }
    };
}
