module example.com/{{name}}

go 1.25

require corral v0.0.0

replace corral => ./corral-sdk
