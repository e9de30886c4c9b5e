//! Rows of the family `tutorial`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_tutorial {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            tutorial {
                "levels" LevelsParams Teaching {
                    level_0_loop F16: Direct, Level<0>;
                    level_1_shared F16: Direct, Level<1>;
                    level_2_mma F16: Direct, Level<2>;
                    level_3_wgmma F16: Direct, Level<3>;
                    level_4_ring F16: Direct, Level<4>;
                    level_5_roles F16: Direct, Level<5>;
                    level_6_persistent F16: Direct, Level<6>;
                }
            }
        }
    };
}
