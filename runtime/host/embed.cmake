# Makes a C file that holds a text file as an array of chars with a 0 at its end:
#   cmake -DFROM=page.html -DTO=page.c -DNAME=name -P embed.cmake
file(READ ${FROM} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${TO} "extern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes}0};\n")
