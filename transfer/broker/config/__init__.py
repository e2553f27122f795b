"""A broker's configuration: options, their values, and the settings that result from them.

configuration  makes a broker's settings of flags, the environment and a file
options        the options of a broker: their names, their fields in `Settings`, their parsers
settings       a broker's settings
tokenless      disables the fronts whose protocols have no token, if clients have to show one
values         parses values of options: with TOML's types from a file, as text from elsewhere
"""
