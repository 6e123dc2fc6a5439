"""What a program shows of itself while it runs, and the words for it that `inferspan live` has as well."""
